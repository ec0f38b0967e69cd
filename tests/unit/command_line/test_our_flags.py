"""Flags of other libraries are read as ours, or refused with our name."""

import logging
from pathlib import Path

import pytest

from dppo_redis.artefacts.config_file import load_with_notes
from dppo_redis.command_line.declared import options_of
from dppo_redis.command_line.foreign_names import COMMAND_LINE, FOREIGN_NAMES, ForeignName, as_flag, as_key
from dppo_redis.command_line.our_flags import with_our_flags
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.service.arguments import parse_arguments
from ops.options import SerialOptions, TrainOptions, read_options
from workers.__main__ import ActorOptions

TRAIN = options_of(TrainOptions)
SETTINGS = {option.name: option for option in options_of(RunConfig)}


def train(*words: str) -> TrainOptions:
    return read_options(TrainOptions, ["A-v0", *words], "dppo-redis train")


def refusal(*words: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_options(TrainOptions, words, "dppo-redis train")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("foreign", FOREIGN_NAMES, ids=lambda foreign: foreign.name)
def test_each_foreign_name_leads_to_options_that_there_are(foreign: ForeignName) -> None:
    names = {option.name for option in TRAIN}
    mentioned: list[str] = []

    def note(setting: str) -> str:
        mentioned.append(setting)
        return setting

    assert "{" not in foreign.explain(note)
    assert {*mentioned, foreign.ours} - {""} <= names
    assert foreign.ours or foreign.why


def test_each_foreign_name_stands_in_the_table_once_and_is_none_of_ours() -> None:
    names = [foreign.name for foreign in FOREIGN_NAMES]
    assert len(names) == len(set(names))
    assert not set(names) & set(SETTINGS)


def test_names_of_other_libraries_set_what_they_mean() -> None:
    words = "--total-timesteps 1e5 --n_steps 128 --update-epochs 4 --learning-rate 1e-4 --gamma 0.9"
    words += (
        " --gae-lambda 0.8 --clip-range 0.1 --vf_coef 0.25 --ent-coef=0.01 --max-grad-norm 1 --target-kl 0.02"
    )
    words += " --anneal-lr"
    config = train(*words.split()).config
    assert (config.total_steps, config.rollout_steps) == (100_000, 128)
    assert config.ppo.model_dump(exclude_defaults=True) == {
        "update_epochs": 4,
        "learning_rate": 1e-4,
        "gamma": 0.9,
        "gae_lambda": 0.8,
        "clip_epsilon": 0.1,
        "value_coef": 0.25,
        "entropy_coef": 0.01,
        "max_grad_norm": 1.0,
        "target_kl": 0.02,
        "anneal_learning_rate": True,
    }


def test_a_flag_that_is_read_as_another_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dppo"):
        train("--n-steps", "8", "--ppo.ent-coef", "0", "--gamma", "0.9")
    assert [record.getMessage() for record in caplog.records] == [
        "--n-steps is --rollout-steps here; --ppo.ent-coef is --ppo.entropy-coef here"
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--batch-size 64", ("--batch-size", "--ppo.minibatch-size", "--ppo.batch-steps")),
        ("--num_minibatches=4", ("--num_minibatches", "--ppo.minibatch-size")),
        ("--num-envs 8", ("--num-envs", "--envs-per-actor", "--actors")),
        ("--n-envs 8", ("--n-envs", "--envs-per-actor", "--actors")),
        ("--no-norm-adv", ("--no-norm-adv", "leave it out")),
        ("--clip-vloss", ("--clip-vloss", "--ppo.value-clip")),
        ("--exp-name x", ("--exp-name", "--run NAME")),
        ("--no-evaluation", ("--no-evaluation", "--evaluation.enabled false")),
        ("--actor 3", ("unknown option --actor", "--actors?")),
        ("--n-step 3", ("unknown option --n-step", "--rollout-steps?")),
        ("--ppo.batch-size 64", ("--ppo.batch-size", "--ppo.minibatch-size", "--ppo.batch-steps")),
        ("--lock-step=3", ("--lock-step takes no value (got '3')",)),
        ("--help-all", ("unknown option --help-all",)),
        ("--episodes 3", ("unknown option --episodes", "--evaluation.episodes?")),
        ("--interval-s 3", ("--evaluation.interval-s or --checkpoint.interval-s?",)),
        ("--network.gamma 3", ("unknown option --network.gamma", "--ppo.gamma?")),
        ("--redisredis://me:hunter2@here", ("unknown option --redisredis://me:***@here",)),
        ("--ppo gamma=0.9", ("unknown option --ppo: its settings are --ppo.NAME VALUE",)),
        ("B-v0", ("unexpected word 'B-v0': ENV is 'A-v0' already",)),
        ("--resume it", ("unexpected word 'it': ENV is 'A-v0' already",)),
        ("-n 3", ("unexpected word '-n': ENV is 'A-v0' already",)),
        ("--zzz 3", ("unknown option --zzz (see dppo-redis train --help)",)),
    ],
)
def test_a_flag_that_is_not_ours_is_refused_with_ours(words: str, says: tuple[str, ...]) -> None:
    message = refusal("A-v0", *words.split())
    assert all(word in message for word in says), message
    assert "(see dppo-redis train --help)" in message


def test_the_environment_may_be_named_by_a_flag() -> None:
    for words in (["--env-id", "A-v0"], ["--wrappers", "B", "--env=A-v0"]):
        assert read_options(TrainOptions, words, "dppo-redis train").config.env_id == "A-v0"
    assert "--env-id needs a value" in refusal("--env-id")


def test_a_switch_takes_true_and_false_and_can_be_turned_off(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("lock_step = true\nuse_action_mask = false\n[ppo]\nanneal_clip = true\n")
    off = train("--config", str(file), "--no-lock-step", "--ppo.no-anneal-clip", "--use-action-mask").config
    assert (off.lock_step, off.use_action_mask, off.ppo.anneal_clip) == (False, True, False)
    on = train("--config", str(file), "--lock-step", "--anneal-clip", "True", "--no-use-action-mask").config
    assert (on.lock_step, on.use_action_mask, on.ppo.anneal_clip) == (True, False, True)
    assert train("--lock-step", "false").config.lock_step is False


@pytest.mark.parametrize(
    ("words", "flag", "last"),
    [
        ("--wrappers A B CartPole-v1", "--wrappers", "CartPole-v1"),
        ("--env-kwargs a 1 CartPole-v1 --seed 3", "--env-kwargs", "CartPole-v1"),
        ("--network.hidden 64 64 CartPole-v1", "--network.hidden", "CartPole-v1"),
        ("--hidden 64 CartPole-v1 --env-kwargs a 1", "--network.hidden", "CartPole-v1"),
        ("--evaluation.wrappers CartPole-v1", "--evaluation.wrappers", "CartPole-v1"),
    ],
)
def test_an_environment_that_a_flag_swallowed_is_found(words: str, flag: str, last: str) -> None:
    message = refusal(*words.split())
    assert message.startswith(f"name an environment: {flag} takes all words behind it, also '{last}'")
    assert "-- before ENV" in message


def test_behind_two_hyphens_stands_the_environment() -> None:
    words = ["--wrappers", "A", "B", "--", "CartPole-v1"]
    config = read_options(TrainOptions, words, "dppo-redis train").config
    assert (config.env_id, config.wrappers) == ("CartPole-v1", ("A", "B"))


@pytest.mark.parametrize("foreign", FOREIGN_NAMES, ids=lambda foreign: foreign.name)
def test_a_foreign_key_of_a_file_is_read_or_refused_as_the_flag_is(
    foreign: ForeignName, tmp_path: Path
) -> None:
    file = tmp_path / "run.toml"
    table = foreign.section[:-1] or "ppo"
    for name, text in (
        (foreign.name, f"{foreign.name} = VALUE"),
        (f"{table}.{foreign.name}", f"[{table}]\n{foreign.name} = VALUE"),
    ):
        is_read = foreign.ours in SETTINGS and (name == foreign.name or bool(foreign.section))
        is_switch = is_read and isinstance(SETTINGS[foreign.ours].default, bool)
        is_text = foreign.ours == "env_id"
        file.write_text(text.replace("VALUE", "true" if is_switch else '"A-v0"' if is_text else "1.0"))
        if is_read and foreign.ours == "ppo.clip_epsilon":  # below 1
            file.write_text(text.replace("VALUE", "0.5"))
        if is_read and foreign.ours in ("ppo.batch_steps", "ppo.minibatch_size"):  # at least 8
            file.write_text(text.replace("VALUE", "8"))
        if is_read:
            (note,) = load_with_notes(file)[1]
            assert f"{name} is {foreign.ours} here" in note
            assert foreign.why in note
        else:
            with pytest.raises(ConfigurationError) as caught:
                load_with_notes(file)
            assert str(caught.value).startswith(f"{file}: unknown setting {name}: ")
            assert (foreign.ours if foreign.ours in SETTINGS else foreign.explain(as_key)) in str(
                caught.value
            )


@pytest.mark.parametrize("foreign", FOREIGN_NAMES, ids=lambda foreign: foreign.name)
def test_a_foreign_flag_is_replaced_by_ours_or_refused_with_ours(foreign: ForeignName) -> None:
    if foreign.library == COMMAND_LINE:
        return  # as flags these are ours
    flag = as_flag(foreign.name)
    if foreign.ours:
        ours = with_our_flags([flag, "1"], TRAIN)
        assert as_flag(foreign.ours) in ours.words or foreign.ours == "env_id"
        assert [note.startswith(f"{flag} is ") for note in ours.notes] == [True]
        return
    for section in ("", "ppo."):
        with pytest.raises(ConfigurationError) as caught:
            with_our_flags([as_flag(f"{section}{foreign.name}")], TRAIN)
        assert foreign.explain(as_flag) in str(caught.value)


def test_the_weight_of_the_value_loss_in_a_file_is_read_with_a_word_about_its_meaning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "run.toml"
    for text in ("vf_coef = 0.25", "[ppo]\nvf_coef = 0.25"):
        file.write_text(text)
        caplog.clear()
        with caplog.at_level(logging.INFO, "dppo"):
            assert train("--config", str(file)).config.ppo.value_coef == 0.25
        (note,) = caplog.messages
        assert "vf_coef is ppo.value_coef here (stable-baselines3 does not halve the squared error" in note


def test_a_file_of_settings_in_the_place_of_the_environment_and_a_server_for_serial_are_refused() -> None:
    assert "write --config in front of it" in refusal("run.toml")
    with pytest.raises(ConfigurationError, match="serial trains without Redis: leave it out"):
        read_options(SerialOptions, ["A-v0", "--redis=redis://x"], "dppo-redis serial")


def test_services_still_take_their_event_log_by_its_former_name() -> None:
    options = parse_arguments(ActorOptions, ["--run", "a", "--history", "file"], "dppo-redis actor")
    assert options.event_log == Path("file")


def test_words_that_are_ours_stay_as_they_are() -> None:
    words = ["CartPole-v1", "--ppo.gamma", "0.9", "-h", "--env-kwargs", "x", "-1", "--json", "--run=a=b"]
    ours = with_our_flags(words, TRAIN)
    assert (ours.words, ours.notes) == (words, [])


def test_serial_has_what_it_has() -> None:
    with pytest.raises(ConfigurationError, match="unknown option --history"):
        read_options(SerialOptions, ["A-v0", "--history", "x"], "dppo-redis serial")
