import gc

from inlay.training.gc_frozen import gc_frozen


def test_what_is_alive_is_gc_frozen_for_a_while():
    before = gc.get_freeze_count()
    with gc_frozen():
        assert gc.get_freeze_count() > before
        new = [object() for _ in range(3)]
        assert gc.is_tracked(new)
    assert gc.get_freeze_count() == before


def test_what_somebody_else_has_frozen_stays_so():
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with gc_frozen():
            pass
        assert gc.get_freeze_count() > 0.9 * count > 0  # some may be gone by themselves; unfreezing leaves none
    finally:
        gc.unfreeze()
