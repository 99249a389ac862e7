//! Presets, defaults and every rule of a layout.

use super::RoleKind::{Control, Delivery, Dispatch, Index, Log, Namesrv, Replica, Shard};
use super::*;

fn cpus(count: usize) -> Vec<usize> {
    (0..count).collect()
}

/// DESIGN 2, default placement, roles only.
fn roles(layout: &Layout) -> Vec<Vec<RoleKind>> {
    layout.cores.iter().map(|core| core.roles.clone()).collect()
}

#[test]
fn the_presets_are_the_default_layouts() {
    let presets = [
        (1, include_str!("../../../tuning/1-core.toml")),
        (2, include_str!("../../../tuning/2-core.toml")),
        (4, include_str!("../../../tuning/4-core.toml")),
        (8, include_str!("../../../tuning/8-core-nvme.toml")),
    ];
    for (count, text) in presets {
        let layout = Layout::parse("preset", text, &cpus(count)).expect("a preset is right");
        assert_eq!(layout, default_layout(&cpus(count), true), "{count} CPUs");
    }
}

#[test]
fn default_placement_is_the_designs() {
    let quiet = vec![Index, Delivery, Control];
    let with_namesrv = vec![Index, Delivery, Control, Namesrv];
    assert_eq!(
        roles(&default_layout(&cpus(1), true)),
        [vec![
            Shard, Log, Dispatch, Index, Delivery, Control, Namesrv
        ]]
    );
    assert_eq!(
        roles(&default_layout(&cpus(2), false)),
        [vec![Shard, Log, Dispatch], quiet.clone()]
    );
    assert_eq!(
        roles(&default_layout(&cpus(3), false)),
        [vec![Shard], vec![Log, Dispatch], quiet]
    );
    assert_eq!(
        roles(&default_layout(&cpus(4), true)),
        [vec![Shard], vec![Log], vec![Dispatch], with_namesrv]
    );
    for count in [5, 6, 8, 16, 64] {
        let layout = default_layout(&cpus(count), true);
        let shards = layout
            .cores
            .iter()
            .filter(|core| core.roles == [Shard])
            .count();
        assert_eq!((layout.cores.len(), shards), (count, count - 3));
    }
}

#[test]
fn every_default_layout_passes_its_own_check() {
    for count in 1..=130 {
        let allowed = cpus(count);
        for namesrv in [false, true] {
            assert_eq!(
                default_layout(&allowed, namesrv).check(&allowed),
                Ok(()),
                "{count}"
            );
        }
    }
    let nowhere = default_layout(&[], true);
    assert_eq!((nowhere.cores[0].cpu, nowhere.check(&[])), (None, Ok(())));
    let odd = [3, 7, 11, 12, 40];
    let layout = default_layout(&odd, true);
    let pinned: Vec<_> = layout.cores.iter().map(|core| core.cpu).collect();
    assert_eq!(pinned, odd.map(Some));
    assert_eq!(layout.background_cpu, Some(40));
}

#[test]
fn the_log_never_spins_by_default() {
    for count in 1..=16 {
        let layout = default_layout(&cpus(count), true);
        let log = layout.core_of(Log).expect("every layout has a log");
        assert_eq!(layout.cores[log].idle, Idle::Park);
    }
}

const TWO: &str = "\
[[core]]
cpu = 0
roles = [\"shard\", \"log\", \"dispatch\"]

[[core]]
cpu = 1
roles = [\"index\", \"delivery\", \"control\"]
";

fn fault(text: &str, count: usize) -> (usize, Fault) {
    match Layout::parse("cores.toml", text, &cpus(count)) {
        Err(LayoutError::Fault { line, fault, .. }) => (line, fault),
        other => panic!("expected a fault, not {other:?}"),
    }
}

fn core_fault(core: usize, kind: FaultKind) -> Fault {
    Fault {
        core: Some(core),
        kind,
    }
}

#[test]
fn what_a_file_leaves_out_has_its_default() {
    let layout = Layout::parse("cores.toml", TWO, &cpus(2)).expect("a layout");
    assert_eq!(layout.engine, Engine::Auto);
    assert_eq!(layout.background_cpu, None);
    assert_eq!(layout.cores[0].idle, Idle::Park);
    assert_eq!(
        (layout.cores[0].ring_entries, layout.cores[1].ring_entries),
        (4_096, 1_024)
    );
    let any = TWO.replace("cpu = 1", "cpu = \"any\"\nidle = \"adaptive\"");
    let layout = Layout::parse("cores.toml", &any, &[0]).expect("a layout");
    assert_eq!(
        (layout.cores[1].cpu, layout.cores[1].idle),
        (None, Idle::Adaptive { spin_us: 50 })
    );
}

#[test]
fn each_role_is_there_as_often_as_it_must_be() {
    for role in [Log, Dispatch, Index, Delivery, Control, Shard] {
        let without = TWO.replace(&format!("\"{}\"", role.name()), "\"replica\"");
        let expected = Fault {
            core: None,
            kind: FaultKind::RoleMissing { role },
        };
        assert_eq!(fault(&without, 2), (1, expected));
    }
    for role in [Log, Dispatch, Index, Delivery, Control] {
        let twice = format!("{TWO}\n[[core]]\nroles = [\"{}\"]\n", role.name());
        assert_eq!(
            fault(&twice, 2),
            (9, core_fault(2, FaultKind::RoleTwice { role }))
        );
    }
    let namesrvs =
        format!("{TWO}\n[[core]]\nroles = [\"namesrv\"]\n[[core]]\nroles = [\"namesrv\"]\n");
    assert_eq!(
        fault(&namesrvs, 2),
        (11, core_fault(3, FaultKind::RoleTwice { role: Namesrv }))
    );
    let more = format!("{TWO}\n[[core]]\nroles = [\"shard\"]\n[[core]]\nroles = [\"replica\"]\n");
    assert!(Layout::parse("cores.toml", &more, &cpus(2)).is_ok());
    let same = TWO.replace("\"shard\"", "\"shard\", \"shard\"");
    assert_eq!(
        fault(&same, 2),
        (1, core_fault(0, FaultKind::RoleTwiceOnCore { role: Shard }))
    );
    let nothing = format!("{TWO}\n[[core]]\nroles = []\n");
    assert_eq!(fault(&nothing, 2), (9, core_fault(2, FaultKind::NoRole)));
    assert_eq!(
        fault("", 2),
        (
            1,
            Fault {
                core: None,
                kind: FaultKind::NoCores
            }
        )
    );
}

#[test]
fn a_spinning_core_has_its_cpu_alone() {
    let spinning = TWO.replace("cpu = 1", "cpu = 1\nidle = \"spin\"");
    assert!(Layout::parse("cores.toml", &spinning, &cpus(2)).is_ok());
    let both = spinning.replace("cpu = 0", "cpu = 1\nidle = \"spin\"");
    let shares = FaultKind::SpinSharesCpu { cpu: 1, other: 1 };
    assert_eq!(fault(&both, 2), (1, core_fault(0, shares)));
    let beside_a_parked = spinning.replace("cpu = 0", "cpu = 1");
    let shares = FaultKind::SpinSharesCpu { cpu: 1, other: 0 };
    assert_eq!(fault(&beside_a_parked, 2), (5, core_fault(1, shares)));
    let background = format!("[background]\ncpu = 1\n{spinning}");
    let shares = FaultKind::SpinSharesBackground { cpu: 1 };
    assert_eq!(fault(&background, 2), (7, core_fault(1, shares)));
    let anywhere = spinning.replace("cpu = 1", "cpu = \"any\"");
    assert_eq!(
        fault(&anywhere, 2),
        (5, core_fault(1, FaultKind::SpinAnywhere))
    );
}

#[test]
fn a_cpu_is_one_that_the_process_may_use() {
    assert_eq!(
        fault(TWO, 1),
        (5, core_fault(1, FaultKind::CpuNotAllowed { cpu: 1 }))
    );
    let background = format!("[background]\ncpu = 5\n{TWO}");
    let kind = FaultKind::BackgroundCpuNotAllowed { cpu: 5 };
    assert_eq!(fault(&background, 2), (1, Fault { core: None, kind }));
    let allowed = allowed_cpus().expect("the affinity mask");
    assert!(!allowed.is_empty());
}

#[test]
fn a_blocking_log_is_alone() {
    let blocking = format!("[log]\nengine = \"blocking\"\n{TWO}");
    assert_eq!(
        fault(&blocking, 2),
        (3, core_fault(0, FaultKind::BlockingLogShares))
    );
    let mut layout = default_layout(&cpus(2), true);
    layout.engine = Engine::Blocking;
    let apart = layout.with_log_apart();
    assert_eq!(apart.check(&cpus(2)), Ok(()));
    assert_eq!(apart.cores[2], Core::new(Some(0), &[Log], Idle::Park));
    assert_eq!(apart.clone().with_log_apart(), apart);
}

#[test]
fn from_four_cpus_on_the_index_keeps_off_the_data_path() {
    for with in [Log, Dispatch, Shard] {
        let mut layout = default_layout(&cpus(4), false);
        layout.cores[3].roles.retain(|&role| role != Index);
        let core = layout.core_of(with).expect("the default has it");
        layout.cores[core].roles.push(Index);
        let expected = core_fault(core, FaultKind::IndexOnDataPath { with });
        assert_eq!(layout.check(&cpus(4)), Err(expected));
    }
    assert_eq!(default_layout(&cpus(1), false).check(&[0]), Ok(()));
}

#[test]
fn spin_times_and_ring_sizes_have_bounds() {
    for (line, expected) in [
        ("spin_us = 5", FaultKind::SpinTime),
        ("idle = \"adaptive\"\nspin_us = 0", FaultKind::SpinTime),
        (
            "ring_entries = 100",
            FaultKind::RingEntries { entries: 100 },
        ),
        ("ring_entries = 32", FaultKind::RingEntries { entries: 32 }),
        (
            "ring_entries = 65536",
            FaultKind::RingEntries { entries: 65_536 },
        ),
    ] {
        let text = TWO.replace("cpu = 0", &format!("cpu = 0\n{line}"));
        assert_eq!(fault(&text, 2), (1, core_fault(0, expected)), "{line}");
    }
}

#[test]
fn what_is_no_layout_is_named_with_its_line() {
    for (bad, line) in [
        (TWO.replace("roles = [\"index\"", "roles = [\"indexes\""), 7),
        (TWO.replace("cpu = 1", "cpu = -1"), 6),
        (TWO.replace("cpu = 1", "cpu = \"one\""), 6),
        (TWO.replace("cpu = 1", "processor = 1"), 6),
        (TWO.replace("cpu = 1", "cpu ="), 6),
        (format!("[log]\nengine = \"mmap\"\n{TWO}"), 2),
    ] {
        match Layout::parse("cores.toml", &bad, &cpus(2)) {
            Err(error @ LayoutError::Toml { .. }) => {
                let text = error.to_string();
                assert!(text.starts_with(&format!("cores.toml:{line}: ")), "{text}");
            }
            other => panic!("expected an error, not {other:?}"),
        }
    }
}

#[test]
fn one_file_serves_a_broker_and_a_standalone_process() {
    let standalone = default_layout(&cpus(4), true);
    let broker = default_layout(&cpus(4), false);
    assert_eq!(standalone.clone().with_namesrv(false), broker);
    assert_eq!(broker.with_namesrv(true), standalone);
    let mut apart = default_layout(&cpus(2), false);
    apart.cores.push(Core::new(None, &[Namesrv], Idle::Park));
    assert_eq!(apart.clone().with_namesrv(true), apart);
    assert_eq!(apart.with_namesrv(false), default_layout(&cpus(2), false));
}

#[test]
fn the_table_shows_each_core_once() {
    let mut layout = default_layout(&cpus(4), true);
    layout.cores.push(Core::new(None, &[Replica], Idle::Park));
    assert_eq!(
        layout.table(),
        "\
core  CPU  idle             ring  roles
   0    0  adaptive, 50 us  4096  shard
   1    1  park             1024  log
   2    2  adaptive, 50 us  1024  dispatch
   3    3  park             1024  index delivery control namesrv
   4  any  park             1024  replica
   -    3                         background thread: slow file work, log lines
log engine: auto
"
    );
}
