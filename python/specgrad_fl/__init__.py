"""Federated training with spectral gradient filtering: methods, models, data and runs.

The command is ``specgrad-fl``; the same from Python:

    from specgrad_fl import Config, train
    run = train(Config(method="fedavg", filter="fft", rounds=5), out="runs/first")
"""
