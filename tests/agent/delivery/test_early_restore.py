"""Which machines restore while they prepare; see test_life.py for what becomes of it."""

from cloudspot.agent.delivery.early_restore import EarlyRestore


def restored(context):
    with EarlyRestore(context) as early:
        found = early.finish()
    return None if found is None else found.checkpoint


def test_a_machine_that_has_not_trained_restores_the_newest_checkpoint_of_a_session(bench):
    bench.commit(bench.id(1, 40))
    assert restored(bench.life(launch=2, machine="other").context) == bench.id(1, 40)


def test_a_machine_that_has_trained_has_its_checkpoint_where_the_training_has_left_it(bench):
    bench.commit(bench.id(1, 40))
    context = bench.life(launch=2, machine="other").context
    context.memory.generation = 1
    assert restored(context) is None


def test_a_script_that_restores_its_own_directories_has_them_after_the_setup(bench):
    """They lie in the working directory, where the setup works."""
    bench.commit(bench.id(1, 40))
    context = bench.life(launch=2, machine="other", checkpoint={"directory": "output/*"}).context
    assert restored(context) is None
