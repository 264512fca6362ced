"""Lengths of the tensors that are filtered, per architecture."""

RESNET20 = [432] + [2304] * 6 + [4608] + [9216] * 5 + [18432] + [36864] * 5
RESNET18 = (
    [1728]
    + [36864] * 4
    + [73728]
    + [147456] * 3
    + [294912]
    + [589824] * 3
    + [1179648]
    + [2359296] * 3
)
WRN56_2 = [864] + [9216] * 18 + [18432] + [36864] * 17 + [73728] + [147456] * 17
DENSENET121 = (
    [1728]
    + [36864] * 58
    + [
        128 * (start + 32 * layer)
        for start, layers in ((64, 6), (128, 12), (256, 24), (512, 16))
        for layer in range(layers)
    ]
)
VIT = [24576]

MODELS = {
    "resnet20": RESNET20,
    "resnet18": RESNET18,
    "wrn56_2": WRN56_2,
    "densenet121": DENSENET121,
    "vit": VIT,
}
