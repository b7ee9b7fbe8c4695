from stratos_gateway.sessions.liveness import SessionConfig, SessionLiveness

CONFIG = SessionConfig(silence_timeout_s=1.5, step_timeout_s=3.0)


def test_silence_is_a_fault_after_its_time() -> None:
    liveness = SessionLiveness(CONFIG, 0.0)
    assert not liveness.fault(1.5)
    assert "silent" in liveness.fault(1.6)
    liveness.heard(1, 1.6)
    assert not liveness.fault(3.0)


def test_a_standing_step_counts_only_while_computing() -> None:
    liveness = SessionLiveness(CONFIG, 0.0)
    for tenth in range(100):
        liveness.heard(7, tenth / 10, is_computing=False)
    assert not liveness.fault(10.0)
    for tenth in range(100, 140):
        liveness.heard(7, tenth / 10, is_computing=True)
    assert "stands still" in liveness.fault(13.9)
    liveness.heard(8, 14.0, is_computing=True)
    assert not liveness.fault(14.0)


def test_a_worker_of_slow_steps_gets_more_time_from_its_first_step_on() -> None:
    liveness = SessionLiveness(CONFIG, 0.0)
    for quarter in range(1, 33):
        liveness.heard(0, quarter / 4, is_computing=True, slow_step_s=2.0)
        liveness.heard(0, quarter / 4)  # outputs do not say
        assert not liveness.fault(quarter / 4)
    liveness.heard(0, 8.5, is_computing=True, slow_step_s=2.0)
    assert "stands still" in liveness.fault(8.5)


def test_a_stall_of_ones_own_is_forgiven() -> None:
    liveness = SessionLiveness(CONFIG, 0.0)
    liveness.forgive(10.0)
    assert not liveness.fault(10.5)
