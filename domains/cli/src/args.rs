//! What can be asked for on the command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args as Group, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use toroid_fabric::Torus;
use toroid_model::limits::MAX_ACK_TIMEOUT_MS;
use toroid_model::placement::Policy;

const EXAMPLES: &str = "\
Examples:
  toroid up --torus 2x2x2
  toroid domain create blue 0,0,0 1,1,1
  toroid exec 0,0,0 -- ping -c 3 1-1-1.blue
  toroid ping 0,0,0 1,1,1 -d blue

NODES are one or more of: 1,0,0 (a place), 0-3,0,0 and *,*,1 (several), an alias, @blue (the
members of a domain).

Exit status:
  0  done                       4  no such node or domain
  1  failed                     5  exists already, or runs already
  2  wrong usage or value       6  not permitted
  3  no agent runs              7  a limit is reached
`toroid exec` exits as its command does: 126 when it cannot be executed, 127 when it is not
found, 128 + N when signal N killed it. With --json, too, errors are text on standard error, and
their kind is the exit status.

`toroid NAME` with another NAME runs the program toroid-NAME from beside toroid or from PATH, such as
`toroid kv` and `toroid bench`.";

const EXEC_HELP: &str = "\
Examples:
  toroid exec 0,0,0 -- iperf3 -s
  toroid exec 0,0,0 -- bash                    # with a terminal and job control
  toroid exec --bind . 0,0,0 -- make test      # in this directory, for this user
  toroid exec '*,*,0' -- uptime                # lines begin with their node: \"1,0,0: \"

The terminal is the node's own, so no process of the node can read what is typed afterwards. With it
the command's standard error is the terminal, too, unless it leads elsewhere. When the command ends,
what it has left behind has no terminal any more.";

const APPLY_HELP: &str = "\
Example:
  [domain.blue]                   # becomes exactly this
  nodes = [\"0,0,0\", \"1-3,0,0\", \"db\"]
  limited = [\"3,0,0\"]             # absent: none
  plain = [\"3,0,0\"]               # absent: none
  stacks = [\"3,0,0\"]              # absent: none
  managers = [\"0,0,0\"]            # absent: none
  public = true                   # absent: false
  forward = true                  # absent: false
  subnet = \"10.64.3.0/24\"         # absent: as it is, or chosen
  mtu = 9000                      # absent: as it is, or 9000
  owner = \"alice\"                 # absent: as it is, or who applies the file

  [gateway.blue]                  # its way outside, or another than it has (administrators only)
  node = \"0,0,0\"
  uplink = \"eth1\"
  kind = \"bridge\"                 # absent: nat

  [alias]
  db = \"1,1,0\"

  [owner]                         # of nodes
  \"*,1,0\" = \"alice\"

  [quota.alice]                   # exactly these limits; or of nodes: [quota.\"*,*,*\"]
  domains = 8

What takes something away comes before what gives. The first change that fails ends it; those
before it stay. `toroid dump | toroid apply /dev/stdin` changes nothing.";

const ALLOC_EXAMPLES: &str = "\
Examples:
  toroid alloc 8 --new red           eight close together, in a new domain
  toroid alloc 1 -d red              another one, close to these
  toroid alloc 4 --near 0,0,0        the four nearest to a node, in no domain yet
  toroid free @red                   all of them back";

const UP_HELP: &str = "\
A file for --config; each host has its own, and docs/hosts.md explains it:
  host = \"a\"                      # this one
  torus = \"2x2x2\"
  nodes = [\"0,*,*\"]               # those that it carries
  listen = \"10.0.0.1:7470\"        # for the agents of other hosts
  key = \"/etc/toroid/key\"         # 64 hexadecimal digits, the same on all hosts, mode 600
  directory = \"a\"                 # whose agent holds the directory
  provider = \"tcp\"                # between hosts, tcp or verbs; absent: tcp
  device = \"mlx5_0\"               # with provider verbs; absent: the first, as the next three
  port = 1
  gid-index = 3
  partition-key-index = 0
  state = \"/run/toroid\"           # absent: as without a file; the same of those below
  data = \"/var/lib/toroid\"
  ack-timeout = 200
  offload = true
  ethernet = true                 # absent: true

  [hosts]                         # all others
  b = \"10.0.0.2:7470\"

  [alias]                         # of nodes that this one carries
  db = \"0,1,1\"";

const GATEWAY_HELP: &str = "\
Examples:
  toroid gateway add 0,0,0 --uplink eth1 -d blue             members reach servers outside, by IPv4
  toroid gateway add 0,0,0 --uplink eth1 -d blue --bridge    blue and what is outside are one Ethernet
  toroid gateway rm 0,0,0 -d blue";

/// Where the options of every command stand in its help.
const GLOBAL: &str = "Options of every command";

/// Communication domains: nodes that may talk over Ethernet and by RDMA at the same time.
#[derive(Debug, Parser)]
#[command(name = "toroid", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Args {
    /// State directory of the agent [default: $XDG_RUNTIME_DIR/toroid, or /run/toroid]
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        env = "TOROID_STATE",
        value_name = "DIR",
        hide_env_values = true
    )]
    pub(crate) state: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,
    /// Say more, for example which agent is used
    #[arg(short, long, global = true, help_heading = GLOBAL)]
    pub(crate) verbose: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start an agent with its nodes; returns when it is ready
    #[command(after_help = UP_HELP)]
    Up(Up),
    /// End the agent, its nodes and everything that runs in them
    Down,
    /// Show the agent
    Status,
    /// Look at what this machine has for Toroid, and say what to do about what it lacks
    #[command(after_help = "It needs no agent. It exits with 1 when nodes cannot be made here.")]
    Doctor,
    /// Show and name nodes
    #[command(subcommand)]
    Node(NodeCommand),
    /// Create, change and show domains
    #[command(subcommand)]
    Domain(DomainCommand),
    /// Connect domains to the outside (administrators only)
    #[command(subcommand, after_help = GATEWAY_HELP)]
    Gateway(GatewayCommand),
    /// Take free nodes, which are yours from then on, all or none
    #[command(after_help = ALLOC_EXAMPLES)]
    Alloc(Alloc),
    /// Give nodes back; they leave their domains, and what runs in them ends
    Free {
        /// The nodes
        #[arg(required = true)]
        nodes: Vec<String>,
    },
    /// Make domains, aliases, owners of nodes and quotas what a file says
    #[command(after_help = APPLY_HELP)]
    Apply(Apply),
    /// Print domains, aliases, owners of nodes and quotas as a file for `toroid apply`
    Dump,
    /// Show what was changed and what was denied, and who asked
    Events(Events),
    /// Show and limit what users and nodes have of the agent
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Run a command in nodes
    #[command(
        override_usage = "toroid exec [OPTIONS] <NODES>... -- <COMMAND>...",
        after_help = EXEC_HELP
    )]
    Exec(Exec),
    /// Show the addresses of a node in a domain
    Ip {
        /// The node
        node: String,
        /// The domain; may be left out if the node is in only one
        #[arg(short, long)]
        domain: Option<String>,
    },
    /// Measure both paths between two nodes: Ethernet and RDMA
    Ping(Ping),
    /// Say whether two nodes may talk, by what, and if not, why not
    #[command(after_help = "It exits with 6 when they may not.")]
    Explain(Explain),
    /// Show which node this process is in
    Whoami,
    /// Print completions for a shell
    #[command(after_help = "Example:\n  toroid completions bash > \
                            /usr/share/bash-completion/completions/toroid")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write man pages, one for each command
    #[command(after_help = "Example:\n  toroid man /usr/local/share/man/man1")]
    Man {
        /// Where to; it is made if need be
        directory: PathBuf,
    },
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

#[derive(Debug, Group)]
pub(crate) struct Alloc {
    /// How many
    pub(crate) count: u32,
    /// Put them into this domain; they are placed with regard to its members
    #[arg(short, long, conflicts_with = "new")]
    pub(crate) domain: Option<String>,
    /// Put them into a new domain
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) new: Option<String>,
    /// How they shall lie in the torus: compact (close together), spread (far apart) or random
    #[arg(long, value_name = "HOW", default_value_t)]
    pub(crate) place: Policy,
    /// The nearest to this node
    #[arg(long, value_name = "NODE")]
    pub(crate) near: Option<String>,
}

#[derive(Debug, Group)]
pub(crate) struct Apply {
    /// The file, in TOML
    pub(crate) file: PathBuf,
    /// Say what would be changed, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Remove the domains that the file does not name
    #[arg(long)]
    pub(crate) prune: bool,
}

#[derive(Debug, Group)]
pub(crate) struct Up {
    /// File that says what this host is among several; options of the command line come before what
    /// it says
    #[arg(long, value_name = "FILE", conflicts_with = "torus")]
    pub(crate) config: Option<PathBuf>,
    /// Shape of the fabric; one node is emulated at each place [default: as before, or 2x2x2]
    #[arg(long, value_name = "XxYxZ")]
    pub(crate) torus: Option<Torus>,
    /// Where domains are kept on disk; every state directory has its own place there
    /// [default: $XDG_STATE_HOME/toroid or ~/.local/state/toroid, of root /var/lib/toroid]
    #[arg(long, env = "TOROID_DATA", value_name = "DIR", hide_env_values = true)]
    pub(crate) data: Option<PathBuf>,
    /// Begin without domains; those that were there are kept aside, in a file beside
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Stay in the foreground, until SIGINT or SIGTERM
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Make no interfaces: domains have RDMA only
    #[arg(long)]
    pub(crate) no_ethernet: bool,
    /// Whether interfaces may send and receive super-frames and leave checksums out; off for
    /// all, whatever a domain says [default: as the nodes there are have it, or on]
    #[arg(long, value_name = "ON|OFF", hide_possible_values = true)]
    pub(crate) offload: Option<Offload>,
    /// Give nodes the host's /tmp and /var/tmp, where their processes meet; each has its own
    /// otherwise, in memory
    #[arg(long)]
    pub(crate) share_tmp: bool,
    /// Memory and swap of each node at most, files in memory among them, such as 512M or 4G; what
    /// needs more is killed [default: as before, or no limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// Processes and threads of each node at most [default: as before, or 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(32..=4_194_304))]
    pub(crate) pids: Option<u32>,
    /// How long processes that stay have to acknowledge that a node has left their domain; who is
    /// late, because it was stopped or has no processor, is cut off from the domain, too
    /// [default: 200]
    #[arg(long, value_name = "MILLISECONDS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=MAX_ACK_TIMEOUT_MS))]
    pub(crate) ack_timeout: Option<u64>,
}

/// Bytes, of at least 16 MiB: what a node starts with and a little room.
fn size(text: &str) -> Result<u64, &'static str> {
    let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let unit = units
        .into_iter()
        .find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, bits)));
    let (number, bits) = unit.unwrap_or((text, 0));
    let bytes = number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(1 << bits));
    let bytes = bytes.filter(|bytes| (16 << 20..1 << 50).contains(bytes));
    bytes.ok_or("use bytes, or K, M, G or T of them, and at least 16M")
}

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Offload {
    /// As far as the kernel has it.
    On,
    /// Whole frames with checksums only.
    Off,
}

/// Whether a domain has routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Forward {
    /// Those of its members that are in another such domain.
    #[value(alias = "true")]
    On,
    /// None but its gateway.
    #[value(alias = "false")]
    Off,
}

/// What a member has of a domain's Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Interface {
    /// An interface of the kernel.
    Tap,
    /// None: a process brings an IP stack of its own.
    Stack,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List the nodes
    #[command(alias = "list")]
    Ls,
    /// Give a node a further name
    Alias {
        /// The node
        node: String,
        /// A host name label, such as `db`
        alias: String,
    },
    /// Take a further name away from its node
    Unalias {
        /// The name
        alias: String,
    },
    /// Give nodes to a user, who may then place them and run commands in them
    Chown {
        /// The nodes
        #[arg(required = true)]
        nodes: Vec<String>,
        /// The user, by name or number; `free` gives them back to the agent
        #[arg(value_name = "USER", value_parser = owner)]
        owner: Owner,
    },
    /// Let the owner of a domain place your nodes in it
    Consent {
        /// The nodes
        #[arg(required = true)]
        nodes: Vec<String>,
        /// The domain
        #[arg(short, long)]
        domain: String,
        /// No longer; nodes that are in the domain stay there
        #[arg(long)]
        withdraw: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum DomainCommand {
    /// Create a domain; members have names when it returns, and interfaces where there are TAPs
    ///
    /// Members have no interfaces without /dev/net/tun (see `toroid status`) or with `--interface stack`.
    Create {
        /// Name of the domain and of its interfaces, at most 15 characters
        name: String,
        /// The first members
        nodes: Vec<String>,
        /// These members may talk to full members only, not to each other
        #[arg(long)]
        limited: bool,
        /// Whether their interfaces may send and receive super-frames and leave checksums out
        #[arg(
            long,
            value_name = "ON|OFF",
            default_value = "on",
            hide_possible_values = true
        )]
        offload: Offload,
        /// An interface of the kernel, or none: then only programs with sockets of `toroid_ethernet::Stack`
        /// have Ethernet in the node, one at a time
        #[arg(
            long,
            value_name = "TAP|STACK",
            default_value = "tap",
            hide_possible_values = true
        )]
        interface: Interface,
        /// Let everybody join with nodes of theirs
        #[arg(long)]
        public: bool,
        /// For another user, by name or number (administrators only)
        #[arg(long, value_name = "USER", value_parser = user)]
        owner: Option<u32>,
        /// IPv4 subnet [default: the next free one of 10.64.0.0/10]
        #[arg(long, value_name = "CIDR")]
        subnet: Option<String>,
        /// Bytes of the largest packet [default: 9000]
        #[arg(long, value_name = "BYTES")]
        mtu: Option<u32>,
        /// Succeed if it is there as wanted: with these members, whoever else is in it
        #[arg(long)]
        may_exist: bool,
    },
    /// Add nodes to a domain
    Grow {
        /// The domain
        name: String,
        /// The new members
        #[arg(required = true)]
        nodes: Vec<String>,
        /// They may talk to full members only, not to each other
        #[arg(long)]
        limited: bool,
        /// Whether their interfaces may send and receive super-frames and leave checksums out
        #[arg(
            long,
            value_name = "ON|OFF",
            default_value = "on",
            hide_possible_values = true
        )]
        offload: Offload,
        /// An interface of the kernel, or none: then only programs with sockets of `toroid_ethernet::Stack`
        /// have Ethernet in the node, one at a time
        #[arg(
            long,
            value_name = "TAP|STACK",
            default_value = "tap",
            hide_possible_values = true
        )]
        interface: Interface,
    },
    /// Take nodes out of a domain
    Shrink {
        /// The domain
        name: String,
        /// The members that leave
        #[arg(required = true)]
        nodes: Vec<String>,
        /// Succeed if none of them is a member, or there is no such domain
        #[arg(long)]
        if_exists: bool,
        /// Say what it would need, and change nothing
        #[arg(long, conflicts_with = "if_exists")]
        dry_run: bool,
    },
    /// Let processes of nodes grow and shrink a domain
    Manage {
        /// The domain
        name: String,
        /// The nodes
        #[arg(required = true)]
        nodes: Vec<String>,
        /// No longer
        #[arg(long)]
        revoke: bool,
    },
    /// Change who has rights in a domain, and whether it has routers
    Set {
        /// The domain
        name: String,
        /// Whether everybody may join with nodes of theirs
        #[arg(long, value_name = "BOOL", required_unless_present_any = ["owner", "forward"])]
        public: Option<bool>,
        /// Whether it has routers: nodes that are in another such domain, too, may forward packets
        /// between the two, and members may announce themselves by IPv6
        #[arg(long, value_name = "ON|OFF", hide_possible_values = true)]
        forward: Option<Forward>,
        /// Its owner, by name or number (administrators only)
        #[arg(long, value_name = "USER", value_parser = user)]
        owner: Option<u32>,
    },
    /// Remove a domain
    #[command(alias = "delete", alias = "remove")]
    Rm {
        /// The domain
        name: String,
        /// Succeed if there is none
        #[arg(long)]
        if_exists: bool,
    },
    /// Count the frames of its members that reached nobody, by reason
    Drops {
        /// The domain
        name: String,
    },
    /// List the domains
    #[command(alias = "list")]
    Ls,
    /// Show a domain and its members
    Show {
        /// The domain
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum GatewayCommand {
    /// Connect a domain to the outside at one of its members
    Add {
        /// The member; the gateway ends when it leaves
        node: String,
        /// The interface of the host that leads outside
        #[arg(long, value_name = "INTERFACE")]
        uplink: String,
        /// The domain; may be left out if the node is in only one
        #[arg(short, long)]
        domain: Option<String>,
        /// Translate addresses: members begin connections, by IPv4 (the default)
        #[arg(long)]
        nat: bool,
        /// Let frames pass: members and what is outside are on one Ethernet
        #[arg(long, conflicts_with = "nat")]
        bridge: bool,
    },
    /// Disconnect a domain
    #[command(alias = "delete", alias = "remove")]
    Rm {
        /// The member at which its gateway is
        node: String,
        /// The domain; may be left out if the node is the gateway of only one
        #[arg(short, long)]
        domain: Option<String>,
    },
    /// List the gateways
    #[command(alias = "list")]
    Ls,
}

#[derive(Debug, Group)]
pub(crate) struct Exec {
    /// Give the command a terminal of its own, as it gets by default in one node when standard input
    /// and output are terminals
    #[arg(short = 't', long, conflicts_with = "no_tty")]
    pub(crate) tty: bool,
    /// Give the command no terminal
    #[arg(short = 'T', long)]
    pub(crate) no_tty: bool,
    /// Begin each line of output with the node it is from, as by default with several nodes
    #[arg(short, long, conflicts_with_all = ["no_label", "tty"])]
    pub(crate) label: bool,
    /// Pass output on as it is
    #[arg(short = 'L', long)]
    pub(crate) no_label: bool,
    /// Give the command a variable, with this process's value or another
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Give the command a directory of yours, at the same path or another, as root of the node: your
    /// files are its files. With `:ro` it cannot change them
    #[arg(short, long, value_name = "DIR[:DEST][:ro]")]
    pub(crate) bind: Vec<String>,
    /// The nodes
    #[arg(required = true)]
    pub(crate) nodes: Vec<String>,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Group)]
pub(crate) struct Ping {
    /// The node that asks
    pub(crate) from: String,
    /// The node that is asked
    pub(crate) to: String,
    /// The domain; may be left out if the first node is in only one
    #[arg(short, long)]
    pub(crate) domain: Option<String>,
    /// Round trips on each path
    #[arg(short, long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// Bytes of each read and echo
    #[arg(short, long, default_value_t = 56, value_parser = clap::value_parser!(u32).range(8..=65_000))]
    pub(crate) size: u32,
}

#[derive(Debug, Group)]
pub(crate) struct Explain {
    /// The node that talks
    pub(crate) from: String,
    /// The node that is talked to
    pub(crate) to: String,
    /// The domain [default: all that both are in]
    #[arg(short, long)]
    pub(crate) domain: Option<String>,
}

#[derive(Debug, Group)]
pub(crate) struct Events {
    /// Go on until interrupted
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// From this number on
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) since: u64,
}

#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Show what is used, and the limits
    Show {
        /// A user, by name or number, or nodes [default: all that concern you]
        #[arg(value_name = "USER|NODES")]
        whose: Option<String>,
    },
    /// Set or lift limits (administrators only); others stay as they are
    Set {
        /// A user, by name or number, or nodes
        #[arg(value_name = "USER|NODES")]
        whose: String,
        #[command(flatten)]
        limits: Limits,
    },
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit(pub(crate) Option<u64>);

#[derive(Debug, Group)]
pub(crate) struct Limits {
    /// Domains owned by the user, or that the node is in; `none` lifts the limit that was set
    #[arg(long, value_name = "N", value_parser = limit)]
    domains: Option<Limit>,
    /// Regions of its processes
    #[arg(long, value_name = "N", value_parser = limit)]
    regions: Option<Limit>,
    /// Bytes of its regions, such as 64M
    #[arg(long, value_name = "SIZE", value_parser = limit)]
    bytes: Option<Limit>,
    /// Packet channels that its processes open
    #[arg(long, value_name = "N", value_parser = limit)]
    rings: Option<Limit>,
    /// Descriptors that the agent keeps for its processes
    #[arg(long, value_name = "N", value_parser = limit)]
    descriptors: Option<Limit>,
    /// Nodes that belong to the user
    #[arg(long, value_name = "N", value_parser = limit)]
    nodes: Option<Limit>,
    /// IPv4 addresses in the subnets of the user's domains
    #[arg(long, value_name = "N", value_parser = limit)]
    addresses: Option<Limit>,
}

impl Limits {
    pub(crate) fn in_order(self) -> [Option<Limit>; 7] {
        [
            self.domains,
            self.regions,
            self.bytes,
            self.rings,
            self.descriptors,
            self.nodes,
            self.addresses,
        ]
    }
}

/// A number, with K, M, G or T for powers of 1024, or `none`.
fn limit(text: &str) -> Result<Limit, String> {
    const POWERS: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    if text == "none" {
        return Ok(Limit(None));
    }
    let ending = POWERS.iter().find(|(ending, _)| text.ends_with(*ending));
    let (digits, shift) = match ending {
        Some((_, shift)) => (&text[..text.len() - 1], *shift),
        None => (text, 0),
    };
    let number: Option<u64> = digits.parse().ok();
    let number = number.and_then(|number| number.checked_mul(1 << shift));
    let wrong = || "write a number such as 16 or 64M, or none".to_owned();
    number.map(|number| Limit(Some(number))).ok_or_else(wrong)
}

/// The command that a mistyped name is most like, if it is much like one.
pub(crate) fn nearest_command(name: &str) -> Option<String> {
    let commands = Args::command();
    let like = |other: &str| strsim::jaro_winkler(name, other);
    let close = commands
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .filter(|other| like(other) > 0.8);
    close.max_by(|a, b| like(a).total_cmp(&like(b)))
}

/// Whose a node shall be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    Free,
    User(u32),
}

fn owner(text: &str) -> Result<Owner, String> {
    match text {
        "free" => Ok(Owner::Free),
        _ => user(text).map(Owner::User),
    }
}

/// The uid of a user, given by name or number.
pub(crate) fn user(text: &str) -> Result<u32, String> {
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    match nix::unistd::User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err("no user has this name".into()),
        Err(error) => Err(format!("users cannot be looked up: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn a_mistyped_command_is_recognized() {
        assert_eq!(super::nearest_command("domian").as_deref(), Some("domain"));
        assert_eq!(super::nearest_command("statsu").as_deref(), Some("status"));
        assert_eq!(super::nearest_command("frobnicate"), None);
    }

    #[test]
    fn limits_are_numbers_sizes_or_none() {
        use super::{Limit, limit};
        assert_eq!(limit("16"), Ok(Limit(Some(16))));
        assert_eq!(limit("64M"), Ok(Limit(Some(64 << 20))));
        assert_eq!(limit("none"), Ok(Limit(None)));
        for bad in ["", "M", "1KK", "-1", "1.5G", "99999999999T", "1ß"] {
            assert!(limit(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        super::Args::command().debug_assert();
    }
}
