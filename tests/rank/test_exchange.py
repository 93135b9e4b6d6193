import torch

from moebench.rank.exchange import Exchange


def test_one_rank_has_nobody_to_send_to():
    exchange = Exchange(0, 1)
    x = torch.arange(6).view(3, 2)
    assert torch.equal(exchange.all_to_all("dispatch", x, [3], [3]).wait(), x)
    assert torch.equal(exchange.all_gather("metadata", x).wait(), x.unsqueeze(0))
    assert exchange.ledger.tx_bytes.total() == exchange.ledger.rx_bytes.total() == 0


def test_a_cleared_ledger_is_empty():
    exchange = Exchange(0, 1)
    exchange.all_gather("metadata", torch.zeros(1))
    exchange.ledger.clear()
    assert exchange.ledger.tx_bytes.total() == 0
    assert not exchange.ledger.tx_bytes
