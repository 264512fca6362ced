"""The filters whose effect on clients' gradients is measured, by label."""

from __future__ import annotations

from typing import Any

from specgrad_study.paper.ablations import INNERMOST, OUTERMOST, order_settings

Settings = dict[str, Any]

NONE, FFT, CENTRALIZE = "none", "fft 0.05", "centralize"
BEYOND = "fft without the filter means"
# what the experiment on the mechanism trains with
MECHANISM: dict[str, Settings] = {
    NONE: {},
    "fft 0.002": {"filter": "fft", "ratio": 0.002},
    "fft 0.005": {"filter": "fft", "ratio": 0.005},
    "fft 0.01": {"filter": "fft", "ratio": 0.01},
    FFT: {"filter": "fft", "ratio": 0.05},
    CENTRALIZE: {"filter": "centralize"},
    "mean of each kernel": {"filter": "centralize", "filter_options": {"group_dims": 2}},
    "mean of the layer": {"filter": "centralize", "filter_options": {"group_dims": 0}},
    "mean of each input channel": {"filter": "centralize", "filter_order": "1023"},
    "centralize then fft": {"filter": "centralize+fft"},
    BEYOND: {"filter": "fft-centralize"},
}
# what the figure on the spectral bias of drift tries besides
TRIED: dict[str, Settings] = {
    **{f"fft, order {order}": order_settings(order) for order in OUTERMOST + INNERMOST},
    "fft, random order": order_settings("random:0"),
    "high-frequency": {"filter": "fft_high"},
    "random": {"filter": "random"},
    "lap": {"filter": "lap"},
    "gaussian": {"filter": "gaussian"},
    "2D FFT": {"filter": "fft2d"},
}
ALL = {**TRIED, **{label: each for label, each in MECHANISM.items() if each}}
