import gc

from inlay.training.heap import left_alone


def test_what_is_alive_is_left_alone_for_a_while():
    before = gc.get_freeze_count()
    with left_alone():
        assert gc.get_freeze_count() > before
        new = [object() for _ in range(3)]
        assert gc.is_tracked(new)
    assert gc.get_freeze_count() == before


def test_what_somebody_else_has_frozen_stays_so():
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with left_alone():
            pass
        assert gc.get_freeze_count() > 0.9 * count > 0  # some may be gone by themselves; unfreezing leaves none
    finally:
        gc.unfreeze()
