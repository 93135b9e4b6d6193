import numpy as np
import torch
from tests.arms.small import CPU, loader, preset, tokens

from moebench.arms.loader import Batches, Loader


def batches(seed: int = 0, count: int = 2000) -> Batches:
    return Batches(tokens(count), seq=12, batch=4, seed=seed)


def test_batches_depend_on_seed_and_step_alone():
    first, again = batches(), batches()
    backwards = [again[step] for step in (90, 50, 0)]
    assert all(np.array_equal(a, first[step]) for a, step in zip(backwards, (90, 50, 0), strict=True))
    assert not np.array_equal(first[0], batches(seed=1)[0])


def test_an_epoch_has_every_window_once_and_the_next_one_another_order():
    numbered = Batches(np.arange(12 * 8 + 1, dtype=np.uint32), seq=12, batch=4, seed=0)
    epochs = [[int(row[0]) // 12 for step in steps for row in numbered[step]] for steps in ((0, 1), (2, 3))]
    assert [sorted(epoch) for epoch in epochs] == [list(range(8))] * 2
    assert epochs[0] != epochs[1]
    assert np.array_equal(numbered[0][0], np.arange(13) + numbered[0][0][0])


def test_a_batch_may_need_more_windows_than_there_are():
    assert batches(count=13)[3].shape == (4, 13)


def test_in_a_tick_unit_i_gets_the_batch_of_i_ticks_ago_and_is_idle_before_its_first():
    load = loader(preset())
    seen = [load.tick(tick, range(1, 4)) for tick in range(5)]
    for tick, inputs in enumerate(seen):
        for place, unit in enumerate(range(1, 4)):
            expected = torch.from_numpy(batches()[max(0, tick - unit)])
            assert torch.equal(inputs.tokens_UBT[place], expected)
    assert [inputs.active_U.tolist() for inputs in seen[:4]] == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_what_a_tick_draws_is_new_each_tick_and_the_same_again():
    chosen = preset(local={"final_sampled": 50, "positions": 0.25})
    first, second, again = (loader(chosen).tick(tick, range(4)) for tick in (0, 1, 0))
    assert len(first.positions_P) == 4 * 12 // 4
    assert len(set(first.positions_P.tolist())) == 12
    assert first.sampled_K.min() >= 100
    assert first.sampled_K.max() < 300
    assert torch.equal(first.sampled_K, again.sampled_K)
    assert torch.equal(first.positions_P, again.positions_P)
    assert not torch.equal(first.sampled_K, second.sampled_K)


def test_the_host_is_timed_while_it_makes_batches():
    load = Loader(batches(), preset(), CPU)
    load.batch(0)
    assert load.seconds > 0
