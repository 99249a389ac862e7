//! Real clients, unmodified, against `ringmq standalone`: Java 5.3.3 and 4.9.8, Go, ali-ons and
//! mqadmin. With RINGMQ_CLIENTS_PEER=java the same tests run against Apache RocketMQ 5.3.3, which
//! shows that the tests are right.
//!
//! A test whose client or toolchain is not on the machine is ignored with its reason; with CI in
//! the environment it fails.

#[path = "clients/admin.rs"]
mod admin;
#[path = "clients/crash.rs"]
mod crash;
#[path = "clients/exchange.rs"]
mod exchange;
#[path = "clients/mixed.rs"]
mod mixed;
#[path = "clients/readme.rs"]
mod readme;
#[path = "clients/support/mod.rs"]
mod support;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use support::broker::peer_is_java;
use support::ledger;
use support::toolchain::Kind;
use support::{Outcome, Stop, world};

/// Most of a test is waiting for its clients.
const THREADS: usize = 4;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let conclusion = libtest_mimic::run(&arguments, trials());
    world::end();
    conclusion.exit();
}

/// The long ones first.
fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial(
            "a_killed_broker_loses_nothing_acknowledged",
            crash::a_killed_broker_loses_nothing_acknowledged,
        ),
        trial(
            "a_stopped_broker_keeps_messages_and_offsets",
            crash::a_stopped_broker_keeps_messages_and_offsets,
        ),
        trial(
            "ringmq_and_java_brokers_register_at_each_others_name_server",
            mixed::brokers_register_at_each_others_name_server,
        )
        // There is no ringmq in such a run.
        .with_ignored_flag(peer_is_java()),
        trial(
            "mqadmin_creates_and_shows_a_topic",
            admin::mqadmin_creates_and_shows_a_topic,
        ),
        trial(
            "mqadmin_finds_a_message_by_id_key_and_unique_key",
            admin::mqadmin_finds_a_message_by_id_key_and_unique_key,
        ),
        trial(
            "every_client_receives_what_each_client_sent",
            exchange::all_receive_what_each_sent,
        ),
        trial(
            "readme_shows_the_programs_that_run_here",
            readme::readme_shows_the_programs_that_run_here,
        ),
        trial(
            "readme_java_program_sends_and_receives",
            readme::readme_java_program_sends_and_receives,
        ),
        trial(
            "readme_go_program_sends_and_receives",
            readme::readme_go_program_sends_and_receives,
        ),
        trial(
            "readme_mqadmin_commands_work",
            readme::readme_mqadmin_commands_work,
        ),
    ];
    trials.push(trial(
        "the_ledger_notices_what_is_wrong",
        ledger::notices_what_is_wrong,
    ));
    for kind in Kind::ALL {
        let name = kind.name();
        trials.push(trial(
            format!("{name}_receives_once_all_that_it_sent_in_every_mode"),
            move || exchange::receives_once_what_it_sent(kind),
        ));
        trials.push(trial(
            format!("{name}_gets_only_the_tags_that_it_asked_for"),
            move || exchange::gets_only_its_tags(kind),
        ));
    }
    for kind in [Kind::Java4, Kind::Java5] {
        let name = kind.name();
        trials.push(trial(
            format!("{name}_consumers_share_a_topic_and_take_over"),
            move || exchange::consumers_share_a_topic(kind),
        ));
        trials.push(trial(
            format!("{name}_pull_is_parked_until_a_message_comes"),
            move || exchange::a_parked_pull_gets_the_next_message(kind),
        ));
    }
    trials
}

fn trial(name: impl Into<String>, test: impl FnOnce() -> Outcome + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || match test() {
        Ok(()) => Ok(Completion::Completed),
        Err(Stop::Missing(reason)) if std::env::var_os("CI").is_none() => {
            Ok(Completion::ignored_with(reason))
        }
        Err(stop) => Err(Failed::from(stop.to_string())),
    })
}
