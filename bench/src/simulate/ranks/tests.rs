use super::uniform::{self, Uniform};
use super::*;
use toroid_fabric::routes::Mode;

use crate::plan::Effort;
use crate::worker::programs::rank::{Meter, Nanos, Rank, Usage};
use crate::worker::programs::task::{Name, Task};

#[test]
fn ranks_that_both_send_first_are_a_deadlock() {
    let stop = uniform::try_run(3, |rank| match rank.rank() {
        2 => rank.receive(Some(0), 1, &mut Vec::new()),
        own => {
            rank.send(1 - own, &[0])?;
            rank.receive(None, 1, &mut Vec::new())
        }
    });
    assert_eq!(
        stop.unwrap_err().to_string(),
        "deadlock: rank 0 waits to send to rank 1; rank 1 waits to send to rank 0; \
         1 other rank waits, too"
    );
}

#[test]
fn an_error_is_the_reason_if_others_wait_for_its_rank() {
    let stop = uniform::try_run(3, |rank| match rank.rank() {
        1 => anyhow::bail!("no data"),
        _ => rank.receive(Some(1), 1, &mut Vec::new()),
    });
    assert_eq!(stop.unwrap_err().to_string(), "rank 1 failed: no data");
}

#[test]
fn a_rank_that_panics_ends_the_run_and_the_stacks_of_the_others_are_unwound() {
    let kept = std::rc::Rc::new(());
    let weak = std::rc::Rc::downgrade(&kept);
    let stop = uniform::try_run(4, move |rank| {
        let _held = std::rc::Rc::clone(&kept);
        match rank.rank() {
            // Without the message of the panic hook.
            3 => std::panic::resume_unwind(Box::new("out of range".to_owned())),
            _ => rank.receive(Some(3), 1, &mut Vec::new()),
        }
    });
    assert_eq!(
        stop.unwrap_err().to_string(),
        "rank 3 panicked: out of range"
    );
    assert_eq!(weak.strong_count(), 0);
}

#[test]
fn a_message_to_a_rank_that_does_not_exist_is_an_error_of_its_sender() {
    for to in [0, 2] {
        let found = uniform::run(1, move |rank| rank.send(to, &[1]));
        let error = found[0].as_ref().unwrap_err().to_string();
        assert_eq!(error, format!("a message of rank 0 with rank {to} of 1"));
    }
}

#[test]
fn short_messages_are_eager_and_long_ones_three_way() {
    let time = |bytes: usize, eager: usize| -> (Vec<u64>, Nanos) {
        let mut network = Uniform::default();
        let costs = Costs {
            send: 100 * crate::sim::TICKS,
            receive: 200 * crate::sim::TICKS,
            eager,
            ..Costs::default()
        };
        let mut policies = uniform::policies(2);
        let job = Job {
            network: &mut network,
            nodes: &[NodeId(4), NodeId(7)],
            domain: 3,
            costs,
            policies: &mut policies,
            beside: None,
        };
        let found = run(job, move |rank| {
            match rank.rank() {
                0 => rank.send(1, &vec![7; bytes])?,
                _ => drop(rank.receive(Some(0), bytes, &mut Vec::new())?),
            }
            Ok(rank.now())
        });
        let sent = network.sent.iter().map(|message| message.bytes).collect();
        (sent, *found.unwrap()[1].as_ref().unwrap())
    };
    // A header has 8 bytes, and each packet takes 100 + 1000 + 200 ns besides its bytes.
    assert_eq!(time(50, 50), (vec![58], 1300 + 58));
    assert_eq!(time(51, 50), (vec![8, 8, 51], 3 * 1300 + 8 + 8 + 51));
}

#[test]
fn packets_that_overtake_each_other_are_received_in_their_order() {
    // On this network, a short packet overtakes a long one.
    let mut policies = uniform::policies(2);
    let job = Job {
        network: &mut Uniform::default(),
        nodes: &[NodeId(0), NodeId(1)],
        domain: 0,
        costs: Costs::default(),
        policies: &mut policies,
        beside: None,
    };
    let found = run(job, |rank| {
        let mut into = Vec::new();
        for bytes in [5000, 1] {
            match rank.rank() {
                0 => rank.send(1, &vec![0; bytes])?,
                _ => drop(rank.receive(None, bytes, &mut into)?),
            }
        }
        Ok(())
    });
    assert!(found.unwrap().iter().all(Result::is_ok));
}

#[test]
fn messages_of_an_alltoall_have_the_mode_of_an_alltoall() {
    let mut policies = uniform::policies(4);
    let task = Task::new(Name::Alltoall, Effort::Quick);
    let mut network = Uniform::default();
    let job = Job {
        network: &mut network,
        nodes: &[0, 1, 2, 3].map(NodeId),
        domain: 0,
        costs: Costs::default(),
        policies: &mut policies,
        beside: None,
    };
    run(job, move |rank| task.run(&mut Meter::new(rank), &mut None)).unwrap();
    let report = policies[0].report();
    let [alltoall, others] = [Mode::Adaptive1, Mode::Adaptive0].map(|mode| report.bytes_of(mode));
    assert_eq!(alltoall, 100 * 3 * (1024 + 8));
    assert!(others > 0 && others < 1000);
}

#[test]
fn more_ranks_than_a_program_has_work_for_are_refused_by_each_rank() {
    let task = |name| Task::new(name, Effort::Quick);
    assert!(task(Name::Is).runs_on(3120) && !task(Name::Is).runs_on(3121));
    for (name, possible, refused) in [
        (Name::Ft, 64, 128),
        (Name::Lu, 256, 289),
        (Name::Mg, 8, 16),
        (Name::PingPong, 2, 1),
    ] {
        let task = task(name);
        assert!(task.runs_on(possible) && !task.runs_on(0), "{task}");
        let run = move |rank: &mut SimulatedRank<'_>| task.run(&mut Meter::new(rank), &mut None);
        for found in uniform::run(refused, run) {
            let error = found.unwrap_err().to_string();
            let refusal = format!("{task} does not run on {refused} ranks; ");
            assert!(error.starts_with(&refusal), "{error}");
        }
    }
}

#[test]
fn a_serial_run_has_as_many_operations_as_it_is_expected_to_have() {
    for name in [Name::Lu, Name::Halo3d, Name::Sweep3d] {
        let task = Task::new(name, Effort::Quick);
        let found = uniform::run(1, move |rank| task.run(&mut Meter::new(rank), &mut None));
        let usage = found[0].as_ref().unwrap();
        let operations = task.serial_operations(1) as Nanos;
        assert_eq!(usage.elapsed_ns, operations, "{task}");
    }
}

#[test]
fn times_are_the_same_in_every_run() {
    for name in [Name::Lu, Name::Gups, Name::Sweep3d] {
        let task = Task::new(name, Effort::Quick);
        let times = || -> Vec<Usage> {
            let found = uniform::run(4, move |rank| task.run(&mut Meter::new(rank), &mut None));
            found.into_iter().map(Result::unwrap).collect()
        };
        let first = times();
        assert_eq!(first, times(), "{name:?}");
        assert!(first.iter().all(|usage| usage.communication_ns > 0));
        let is_part = |usage: &Usage| usage.communication_ns < usage.elapsed_ns;
        assert!(first.iter().all(is_part));
    }
}
