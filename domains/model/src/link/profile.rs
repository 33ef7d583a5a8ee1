//! Profiles: the costs of a whole torus, in a file or built in.
//!
//! ```toml
//! name = "bgp"
//! rate = "425MB/s"        # of each link, in each direction
//! hop = "70ns"            # latency of a link
//! payload = 240           # bytes of a message in a packet; absent: messages are not cut
//! header = 16             # further bytes of each packet; absent: 0
//!
//! [rdma]                  # costs of the sender; absent: none
//! message = "730ns"
//! packet = "900ns"
//!
//! [ethernet]              # costs of sender and receiver; absent: none
//! message = "13.499us"    # of the sender's host for each frame
//! rate = "416.67MB/s"     # of the sender's host
//! packet = "1.71us"       # at each end
//! wakeup = "12.6us"       # of the receiver
//!
//! [gateway]               # the same between a bridge and a member; absent: those of the torus
//! message = "7.618us"
//! rate = "446.43MB/s"
//! packet = "1.027us"
//! wakeup = "39us"
//! ```

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toml::de::DeTable;

use super::{LinkError, Rate, Time};
use crate::settings::{Lines, Problem};

/// Costs of a torus and of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricProfile {
    /// Name for people.
    pub name: String,
    /// Rate of each directed link.
    pub rate: Rate,
    /// Latency of each link.
    pub hop: Time,
    /// Most bytes of a message in a packet; 0 if messages are not cut.
    #[serde(default)]
    pub payload: u32,
    /// Bytes of each packet besides.
    #[serde(default)]
    pub header: u32,
    /// Costs of RDMA.
    #[serde(default)]
    pub rdma: RdmaCosts,
    /// Costs of Ethernet.
    #[serde(default)]
    pub ethernet: EthernetCosts,
    /// Costs between an external network and any member of a bridged domain. Without them, frames
    /// travel as between the gateway's node and the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<EthernetCosts>,
}

/// Costs of one-sided operations and of packets of channels, at the sender. The first byte leaves
/// after the costs of the message; packets leave while the next ones are prepared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RdmaCosts {
    /// Time for each message.
    pub message: Time,
    /// Time for each packet.
    pub packet: Time,
}

/// Costs of frames. Host and network card of the sender, network card and host of the receiver
/// follow one after another, and work on different frames at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EthernetCosts {
    /// Time of the sender's host for each frame.
    pub message: Time,
    /// Rate at which the sender's host passes the bytes of a frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Time of each network card for each packet.
    pub packet: Time,
    /// Latency of the receiver's host.
    pub wakeup: Time,
}

impl FabricProfile {
    /// Blue Gene/P with Kittyhawk (Appavoo et al., 2010).
    ///
    /// Links are those of the paper: 425 MB/s, packets of 256 B with 240 B of a message, and less
    /// than 5 us over the 64 hops of the largest machine. All other values are fits to the table
    /// in Figure 4:
    /// * RDMA between neighbours takes 0.8 us, 70 ns of which are the hop, and 0.9 us a packet.
    /// * A datagram takes the sender's host 13.6 us and 2.4 ns a byte. A frame has 42 B of headers
    ///   besides, for which `message` is 101 ns lower.
    /// * Each network card takes 1.71 us a packet.
    /// * The receiver wakes up after 12.6 us.
    /// * Between an external host and a node, which is not over the torus: 7.61 us and 2.24 ns a
    ///   byte at the sender, 1.027 us a packet at each end, and 39 us besides. Of the six numbers of
    ///   the paper, the three rates are exact, and the latencies within 6 %.
    pub fn bgp() -> Self {
        FabricProfile {
            name: "bgp".into(),
            rate: Rate(425_000_000),
            hop: Time(70),
            payload: 240,
            header: 16,
            rdma: RdmaCosts {
                message: Time(730),
                packet: Time(900),
            },
            ethernet: EthernetCosts {
                message: Time(13_499),
                rate: Some(Rate(416_666_667)),
                packet: Time(1_710),
                wakeup: Time(12_600),
            },
            gateway: Some(EthernetCosts {
                message: Time(7_516),
                rate: Some(Rate(446_428_571)),
                packet: Time(1_027),
                wakeup: Time(39_000),
            }),
        }
    }

    /// The built-in profile with this name.
    pub fn built_in(name: &str) -> Option<Self> {
        (name == "bgp").then(Self::bgp)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// All problems, in order of their lines.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let (mut lines, table) = Lines::read(text);
        let file = table.and_then(|table| File { lines: &mut lines }.profile(table.get_ref()));
        // An unreadable file has a problem.
        lines.end(file)?.ok_or_else(Vec::new)
    }
}

/// The form of a file.
impl fmt::Display for FabricProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FabricProfile {
            name,
            rate,
            hop,
            payload,
            header,
            rdma,
            ethernet,
            gateway,
        } = self;
        writeln!(f, "name = \"{}\"", name.escape_default())?;
        writeln!(f, "rate = \"{rate}\"\nhop = \"{hop}\"")?;
        writeln!(f, "payload = {payload}\nheader = {header}\n")?;
        let RdmaCosts { message, packet } = rdma;
        writeln!(
            f,
            "[rdma]\nmessage = \"{message}\"\npacket = \"{packet}\"\n"
        )?;
        write!(f, "[ethernet]\n{ethernet}")?;
        match gateway {
            Some(gateway) => write!(f, "\n[gateway]\n{gateway}"),
            None => Ok(()),
        }
    }
}

/// The lines of a table.
impl fmt::Display for EthernetCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EthernetCosts {
            message,
            rate,
            packet,
            wakeup,
        } = self;
        writeln!(f, "message = \"{message}\"")?;
        if let Some(rate) = rate {
            writeln!(f, "rate = \"{rate}\"")?;
        }
        writeln!(f, "packet = \"{packet}\"\nwakeup = \"{wakeup}\"")
    }
}

/// Bytes that a packet may have of a message, and besides.
const BYTES: RangeInclusive<u32> = 0..=65_535;

struct File<'a> {
    lines: &'a mut Lines,
}

impl File<'_> {
    fn profile(&mut self, file: &DeTable<'_>) -> Option<FabricProfile> {
        let keys = [
            "name", "rate", "hop", "payload", "header", "rdma", "ethernet", "gateway",
        ];
        self.lines.check_keys(file, "the file", &keys);
        for key in ["name", "rate", "hop"] {
            if !file.contains_key(key) {
                self.lines.problem(0, format!("the file has no \"{key}\""));
            }
        }
        let name = file.get("name").and_then(|name| self.lines.string(name));
        let (rate, hop) = (self.value(file, "rate"), self.value(file, "hop"));
        let (payload, header) = (self.bytes(file, "payload"), self.bytes(file, "header"));
        let rdma = file.get("rdma").and_then(|table| self.lines.table(table));
        let rdma = rdma.map(|table| self.rdma(table));
        let [ethernet, gateway] = ["ethernet", "gateway"].map(|name| {
            let table = file.get(name).and_then(|table| self.lines.table(table));
            table.map(|table| self.frames(table, name))
        });
        Some(FabricProfile {
            name: name?.to_owned(),
            rate: rate?,
            hop: hop?,
            payload,
            header,
            rdma: rdma.unwrap_or_default(),
            ethernet: ethernet.unwrap_or_default(),
            gateway,
        })
    }

    fn rdma(&mut self, table: &DeTable<'_>) -> RdmaCosts {
        let keys = ["message", "packet"];
        self.lines.check_keys(table, "rdma", &keys);
        let [message, packet] = keys.map(|key| self.value(table, key).unwrap_or_default());
        RdmaCosts { message, packet }
    }

    fn frames(&mut self, table: &DeTable<'_>, name: &str) -> EthernetCosts {
        let keys = ["message", "rate", "packet", "wakeup"];
        self.lines.check_keys(table, name, &keys);
        let [message, packet, wakeup] =
            ["message", "packet", "wakeup"].map(|key| self.value(table, key).unwrap_or_default());
        EthernetCosts {
            message,
            rate: self.value(table, "rate"),
            packet,
            wakeup,
        }
    }

    fn value<T: FromStr<Err = LinkError>>(&mut self, table: &DeTable<'_>, key: &str) -> Option<T> {
        let value = table.get(key)?;
        let read = self.lines.string(value)?.parse();
        read.map_err(|error| self.lines.problem(value.span().start, error))
            .ok()
    }

    fn bytes(&mut self, table: &DeTable<'_>, key: &str) -> u32 {
        let value = table.get(key);
        let number = value.and_then(|value| self.lines.number(value, BYTES));
        number.unwrap_or_default()
    }
}
