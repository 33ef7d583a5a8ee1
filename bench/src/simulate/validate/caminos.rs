//! CAMINOS (Camarero et al.), a simulator of flits: uniform traffic in dimension order on a torus.
//!
//! Time is in cycles of a flit on a link. Both sides have two virtual channels a link, the same
//! flits in a packet and the same buffer of a channel, which covers the round trip. Our responses,
//! of a flit each, are part of our load.
//!
//! Delays agree up to half of the saturation. There, buffers decide. CAMINOS chooses the channel by
//! chance, with a bubble against deadlock, and a router has buffers at its outputs besides. Our
//! channels are those of a dateline, so most packets of a link are in one of them, with a third of
//! the buffers. With as many flits in this one as a link of CAMINOS has in all, ours carries about
//! as much.

use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use toroid_fabric::routes::{Mode, TorusNetwork};

use super::{Bar, Check, Outcome, Skipped};
use crate::plan::Effort;
use crate::sim::packets::PacketNetwork;
use crate::sim::profile::{FLIT, LinkCosts, NicCosts};
use crate::sim::{Happening, Message, Network, Profile, TICKS, Ticks};

pub const UNIFORM: Check = Check {
    name: "caminos",
    is_long: true,
    run: uniform,
};

/// Routers of each of two dimensions; odd, so that each pair has one shortest path.
const SIDE: u32 = 9;
const NODES: u32 = SIDE * SIDE;

/// Flits of a packet, and cycles of a hop.
const SIZE: u64 = 31;
const HOP: u64 = 10;

/// Packets of the buffer of a channel, the fewest that cover the round trip.
const BUFFER: u32 = 3;

/// Packets of all buffers of a link in CAMINOS: both channels, and 2 at the output.
const ALL_BUFFERS: u32 = 2 * BUFFER + 2;

/// Cycles before those that count, and cycles that do.
const WARM_UP: u64 = 5_000;
const MEASURED: u64 = 20_000;

/// Mean cycles of a message, and flits that a node receives in a cycle.
struct Figures {
    delay: f64,
    accepted: f64,
}

fn uniform(_: Effort) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for load in [0.01, 0.15, 0.3] {
        let (expected, measured) = (caminos(load)?, packets(load, BUFFER)?);
        outcomes.push(outcome(
            format!("delay at a load of {load}, cycles"),
            Bar::Within(0.05),
            expected.delay,
            measured.delay,
        ));
    }
    let expected = caminos(1.0)?.accepted;
    for (buffer, bar) in [(BUFFER, Bar::Below(0.25)), (ALL_BUFFERS, Bar::Within(0.1))] {
        outcomes.push(outcome(
            format!("most flits a node and cycle, buffers of {buffer} packets"),
            bar,
            expected,
            packets(1.0, buffer)?.accepted,
        ));
    }
    Ok(outcomes)
}

fn outcome(what: String, bar: Bar, expected: f64, measured: f64) -> Outcome {
    Outcome {
        against: "CAMINOS",
        what: format!("uniform on {SIDE}x{SIDE}, {what}"),
        bar,
        expected,
        measured,
    }
}

fn caminos(load: f64) -> Result<Figures> {
    let [buffer, output] = [BUFFER, 2].map(|packets| u64::from(packets) * SIZE);
    let links = format!("LinkClass {{ delay: {HOP} }},").repeat(4);
    let configuration = format!(
        "Configuration {{ random_seed: 1, warmup: {WARM_UP}, measured: {MEASURED}, \
         topology: Torus {{ sides: [{SIDE}, {SIDE}], servers_per_router: 1 }}, \
         traffic: HomogeneousTraffic {{ pattern: Uniform, servers: {NODES}, load: {load}, \
         message_size: {SIZE} }}, maximum_packet_size: {SIZE}, \
         router: Basic {{ virtual_channels: 2, \
         virtual_channel_policies: [ EnforceFlowControl, Random ], delay: 0, \
         buffer_size: {buffer}, bubble: true, flit_size: {SIZE}, intransit_priority: false, \
         allow_request_busy_port: true, output_prioritize_lowest_label: false, \
         output_buffer_size: {output} }}, \
         routing: DOR {{ order: [0, 1] }}, link_classes: [ {links} ] }}"
    );
    let program = Command::new("caminos")
        .arg("/dev/stdin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut program = match program {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let remedy = "cargo install caminos --version 0.6.3 --locked";
            let why = format!("the program caminos is not there: {remedy}");
            return Err(Skipped(why).into());
        }
        program => program.context("cannot start caminos")?,
    };
    let mut input = program.stdin.take().context("caminos has no input")?;
    input.write_all(configuration.as_bytes())?;
    drop(input);
    let output = program.wait_with_output()?;
    ensure!(output.status.success(), "caminos failed: {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(Figures {
        delay: field(&text, "average_message_delay")?,
        accepted: field(&text, "accepted_load")?,
    })
}

/// A number of the result, which follows its name.
fn field(text: &str, name: &str) -> Result<f64> {
    let result = text.rsplit("Result").next().unwrap_or_default();
    let mut words = result.split([':', ',', ' ', '\n', '\t']);
    words.find(|word| *word == name);
    let value = words.find(|word| !word.is_empty());
    let value = value.and_then(|value| value.parse().ok());
    value.with_context(|| format!("caminos has no result {name}"))
}

/// The same in packets, with a flit each nanosecond, and channels with a buffer of `link_buffer`
/// packets.
fn packets(load: f64, link_buffer: u32) -> Result<Figures> {
    const NEXT: u64 = u64::MAX;
    let rate = FLIT * 1_000_000_000;
    let link = LinkCosts {
        rate,
        latency_ns: HOP,
    };
    let nic = NicCosts {
        rate,
        send_ns: HOP,
        receive_ns: HOP,
        packet_ns: 0,
        buffer: 3,
        window: 1024,
    };
    let profile = Profile {
        torus: link,
        nic,
        payload: ((SIZE - 1) * FLIT) as u32,
        header: FLIT as u32,
        link_buffer,
        ..Profile::bgp()
    };
    let torus = TorusNetwork::new([SIDE, SIDE, 1])?;
    let bytes = u64::from(profile.payload);
    let mut network = PacketNetwork::new(torus, profile, 1, 1 << 32)?;
    let mut random = fastrand::Rng::with_seed(1);
    let (warm, end) = (WARM_UP * TICKS, (WARM_UP + MEASURED) * TICKS);
    // Requests and responses together are the load.
    let gap = (SIZE + 1) as f64 / load * TICKS as f64;
    let mut due = vec![0.0; NODES as usize];
    let mut begun: Vec<Ticks> = Vec::new();
    for node in 0..NODES {
        network.timer(0, NEXT - u64::from(node));
    }
    let (mut delays, mut delivered) = (0, 0_u64);
    while let Some(happening) = network.next() {
        let now = network.now();
        match happening {
            _ if now >= end => break,
            Happening::Timer(token) => {
                let node = (NEXT - token) as u32;
                // The first timer of a node only begins its traffic.
                if due[node as usize] > 0.0 {
                    let other = (node + random.u32(1..NODES)) % NODES;
                    let message = Message::put(node, other, bytes, Mode::InOrder);
                    let token = begun.len() as u64;
                    network.send(Message { token, ..message });
                    begun.push(now);
                }
                due[node as usize] -= gap * (1.0 - random.f64()).ln();
                network.timer(due[node as usize] as Ticks, token);
            }
            Happening::Delivered(token) if now >= warm => {
                delays += now - begun[token as usize];
                delivered += 1;
            }
            _ => {}
        }
    }
    let flits = delivered * (SIZE + 1);
    Ok(Figures {
        delay: delays as f64 / delivered as f64 / TICKS as f64,
        accepted: flits as f64 / (u64::from(NODES) * MEASURED) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_the_result() {
        let text = "delay: 1\nResult\n{\n\tcycle:\n\t25000,\n\taccepted_load:\n\t0.25,\n}\n";
        assert_eq!(field(text, "accepted_load").unwrap(), 0.25);
        let none = field(text, "delay").unwrap_err();
        assert_eq!(none.to_string(), "caminos has no result delay");
    }
}
