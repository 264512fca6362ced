"""Settings: types, limits, files, names that do not exist."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specgrad_fl import toml
from specgrad_fl.config import EXECUTION_KEYS, FIELDS, OPTIONS, Config, read_toml
from specgrad_fl.errors import ConfigError
from specgrad_fl.flags import Parser, add_settings, settings_of
from specgrad_fl.methods import METHODS, own_options, resolve_options


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 2.5}, "rounds must be a whole number; got 2.5"),
        ({"rounds": True}, "rounds must be a whole number; got True"),
        ({"lr": "fast"}, "lr must be a number; got 'fast'"),
        ({"filter": "ftt"}, "filter is 'ftt'; did you mean 'fft'"),
        ({"augment": "yes"}, "augment must be true or false"),
        ({"options": 3}, "options must be a table"),
        ({"lr_schedule": "all"}, "choose one of cosine, decay, steps"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ConfigError, match=message):
        Config(**settings)


def test_whole_numbers_are_numbers():
    assert Config(lr=1).lr == 1.0
    assert isinstance(Config(lr=1).lr, float)


def test_toml(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text('lr = 0.5\nmethod = "fedprox"\n[options.fedprox]\nmu = 1\n')
    assert read_toml(path) == {"lr": 0.5, "method": "fedprox", "options": {"fedprox.mu": 1}}


def test_a_run_of_an_older_version_is_read(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('rounds = 2\nsuperlink = ""\ntls_ca = ""\n')
    assert read_toml(path) == {"rounds": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('superlink = "a:1"', "the setting superlink is gone; remove it"),
        ("batchsize = 3", "unknown setting 'batchsize'; did you mean 'batch_size'"),
        ("zzz = 3", "unknown setting 'zzz'; `specgrad-fl train --help`"),
    ],
)
def test_bad_toml(tmp_path, text, message):
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_toml(path)


texts = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\x7f"), max_size=20
)


@given(
    dataset=texts,
    lr=st.floats(0, 1e6, exclude_min=True),
    seed=st.integers(0, 2**62),
    augment=st.booleans(),
    options=st.dictionaries(
        texts.filter(bool), st.one_of(st.integers(-(2**62), 2**62), st.booleans(), texts)
    ),
)
def test_written_settings_are_read_back(tmp_path_factory, dataset, lr, seed, augment, options):
    config = Config(dataset=dataset, lr=lr, seed=seed, augment=augment, options=options)
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_text(toml.written(config.as_dict()), encoding="utf-8")
    assert Config(**read_toml(path)) == config


KNOWN = {name for name, item in FIELDS.items() if "known" in item.metadata}


@pytest.mark.parametrize("name", [name for name in (*FIELDS, *OPTIONS) if name not in KNOWN])
def test_digest_depends_on_what_decides_the_result(name):
    default = getattr(Config(), name)
    other = {str: "other", int: 7, float: 0.25, bool: not default, dict: {"a": 0.25}}
    value = other[type(default)]
    checked = {"filter": ("none", "fft"), "epochs_range": ("", "1-2"), "stack": ("1", "8")}
    about = OPTIONS[name].limits if name in OPTIONS else FIELDS[name].metadata
    choices = checked.get(name, about["choices"])
    changed = Config().replace(**{name: choices[1] if choices else value})
    assert getattr(changed, name) != default
    table = OPTIONS[name].table if name in OPTIONS else name
    assert (changed.digest == Config().digest) == (table in EXECUTION_KEYS)


def test_no_more_than_48_settings():
    assert len(FIELDS) <= 48


def test_options_count_as_the_settings_that_they_were():
    """Digests of version 0.1: results that are stored under them are found."""
    changes = {"filter": "fft", "filter_order": "0231", "filter_options": {"window": 25}}
    assert Config().replace(**changes).digest == "3fc11e0369eb4c93"
    assert Config(partition_options={"mode": "refill", "shards": 2}).digest == "f5f26bc7b65a9108"


def test_old_settings_are_read_and_named(tmp_path, capsys):
    with pytest.warns(DeprecationWarning, match="partition_options={'mode': 'refill'}"):
        old = Config(partition_mode="refill", partition_options={"shards": 3})
    assert old.partition_options == {"mode": "refill", "shards": 3}
    path = tmp_path / "config.toml"
    path.write_text(
        'partition_mode = "refill"\nnesterov = false\n[partition_options]\nshards = 3\n'
    )
    assert Config(**read_toml(path)) == old
    flags = ["--partition-mode=refill", "--partition-option=shards=3", "--no-nesterov"]
    parser = Parser()
    add_settings(parser)
    assert Config(**settings_of(parser.parse_args(flags))) == old
    said = capsys.readouterr().err
    assert "--partition-mode is now --partition-option mode=refill\n" in said
    assert "partition_mode" not in parser.format_help()
    with pytest.raises(ConfigError, match="partition_options has no option 'mod'; did you mean"):
        Config(partition_options={"mod": "once"})
    with pytest.raises(ConfigError, match="--partition-option mode is 'twice'; choose one of"):
        Config(partition_options={"mode": "twice"})


def test_every_setting_explains_itself():
    assert all(len(item.metadata["help"]) > 5 for item in FIELDS.values())


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fedprox", {"my": 1.0}, "has no option 'my'; choose one of mu"),
        ("fedprox", {"mu": -1}, "option 'mu' of 'fedprox' is -1.0; the least is 0"),
        ("fedprox", {"fedprix.mu": 1}, "names no method; did you mean 'fedprox'"),
        ("fedcm", {"alpha": 2}, "is 2.0; the most is 1"),
        ("feddisco", {"distance": "l3"}, "is 'l3'; choose one of cos, kl, l1, l2"),
        ("fedlws", {"tau_max": 0.001}, "tau_max is 0.001; the least is 0.01"),
        ("math:sqrt", {}, "not a subclass"),
        ("math:nothing", {}, "math has no 'nothing'"),
        ("no_module_of_this_name:M", {}, "cannot import"),
    ],
)
def test_option_refusals(method, options, message):
    with pytest.raises(ConfigError, match=message):
        resolve_options(method, options)


def test_a_table_may_serve_several_methods():
    table = {"fedprox.mu": 0.5, "alpha": 0.3}
    assert own_options("fedprox", table, ["fedprox", "feddyn"]) == {"mu": 0.5}
    assert own_options("feddyn", table, ["fedprox", "feddyn"]) == {"alpha": 0.3}


@pytest.mark.parametrize("method", METHODS)
def test_defaults_are_valid(method):
    assert resolve_options(method, {}) == METHODS[method].Options()
