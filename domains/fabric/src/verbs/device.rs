//! Selection of device, port, global identifier (GID) and partition key.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::sync::Arc;

use ibverbs_sys as ffi;

use super::objects::{Context, Locals, Object, errno};

/// Reads and atomics of a queue pair in flight in each direction, if the device can.
const LOADS: u8 = 16;

/// The device to open, and the part of it to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Name of the device; by default the first.
    pub device: Option<String>,
    /// Number of the port, from 1.
    pub port: u8,
    /// Index of the port's GID; by default the first that routes over IP (RoCE version 2, IPv4
    /// before IPv6), or else the first.
    pub gid_index: Option<u8>,
    /// Index of the port's partition key. Only ports with a common key can communicate.
    pub partition_key_index: u16,
}

impl Default for Selection {
    fn default() -> Self {
        Selection {
            device: None,
            port: 1,
            gid_index: None,
            partition_key_index: 0,
        }
    }
}

/// Why a selection cannot be used. Each error names the object looked for and those present.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The kernel has no device, or no support for any.
    #[error(
        "no RDMA device: looked for {}, found none (see `rdma link`; are the modules of the device \
         and ib_uverbs loaded?)",
        wanted.as_deref().unwrap_or("any")
    )]
    None {
        /// The device looked for.
        wanted: Option<String>,
    },
    /// No device has the name.
    #[error("no RDMA device named {wanted}: there is {present}")]
    NotFound {
        /// The device looked for.
        wanted: String,
        /// Names of the devices present.
        present: List<String>,
    },
    /// The device has no such port.
    #[error("{device} has no port {port}: it has ports 1 to {ports}")]
    NoPort {
        /// The device.
        device: String,
        /// The port looked for.
        port: u8,
        /// Number of ports.
        ports: u8,
    },
    /// The port is not active.
    #[error("port {port} of {device} is not active (its state is {state}): is the link up?")]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// `enum ibv_port_state`.
        state: u32,
    },
    /// The port has no GID at the index.
    #[error("port {port} of {device} has no GID at index {index}: it has some at {present}")]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The index looked for.
        index: u8,
        /// Indices of the GIDs present.
        present: List<u32>,
    },
    /// The port has no partition key at the index.
    #[error("port {port} of {device} has no partition key at index {index}: it has {present}")]
    NoPartitionKey {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The index looked for.
        index: u16,
        /// The keys present, with their indices.
        present: List<PartitionKey>,
    },
    /// The system's error.
    #[error("cannot {what} of {device}: {error}")]
    System {
        /// The device.
        device: String,
        /// The action that failed.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

/// Names of objects, separated by commas when printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

impl<T: fmt::Display> fmt::Display for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(T::to_string).collect();
        if names.is_empty() {
            f.write_str("none")
        } else {
            f.write_str(&names.join(", "))
        }
    }
}

/// A partition key and its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionKey {
    /// The index.
    pub index: u16,
    /// The key; the highest bit is set for a full member.
    pub key: u16,
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x} at {}", self.key, self.index)
    }
}

/// An open device and one of its ports.
#[derive(Debug)]
pub struct Device {
    pub(super) context: Arc<Context>,
    name: String,
    port: u8,
    gid_index: u8,
    /// Zeros on an InfiniBand port without one.
    pub(super) gid: [u8; 16],
    partition_key_index: u16,
    pub(super) lid: u16,
    pub(super) mtu: u8,
    /// Bytes of the longest transfer of one request.
    pub(super) longest_message: u64,
    /// Reads and atomics of a queue pair in flight to the peer.
    pub(super) initiator_depth: u8,
    /// Reads and atomics that a queue pair answers at a time.
    pub(super) responder_resources: u8,
    /// Requests that a queue pair has room for.
    pub(super) most_requests: usize,
    /// Segments of local memory of a request; at least one.
    pub(super) most_locals: usize,
    /// Buffers of a shared receive queue.
    pub(super) most_buffers: usize,
}

impl Device {
    /// Opens the selected device.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn open(selection: &Selection) -> Result<Arc<Self>, DeviceError> {
        let (context, name) = open(selection.device.as_deref())?;
        let opened = Opened {
            context: &context,
            name: &name,
            port: selection.port,
        };
        let limits = opened.limits()?;
        let port = opened.port(limits.phys_port_cnt)?;
        let (gid_index, gid) = opened.gid(&port, selection.gid_index)?;
        opened.check_partition_key(&port, selection.partition_key_index)?;
        let loads = |most: libc::c_int| u8::try_from(most).unwrap_or(LOADS).min(LOADS);
        Ok(Arc::new(Device {
            port: selection.port,
            gid_index,
            gid,
            partition_key_index: selection.partition_key_index,
            lid: port.lid,
            mtu: u8::try_from(port.active_mtu).map_or(1, |mtu| mtu.clamp(1, 5)),
            longest_message: u64::from(port.max_msg_sz.clamp(4096, 1 << 30)),
            initiator_depth: loads(limits.max_qp_init_rd_atom),
            responder_resources: loads(limits.max_qp_rd_atom),
            most_requests: usize::try_from(limits.max_qp_wr).unwrap_or(0),
            most_locals: most_locals(&limits),
            most_buffers: usize::try_from(limits.max_srq_wr).unwrap_or(0),
            context: Arc::new(context),
            name,
        }))
    }

    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of the port.
    pub fn port(&self) -> u8 {
        self.port
    }

    /// Index of the GID.
    pub fn gid_index(&self) -> u8 {
        self.gid_index
    }

    /// Index of the partition key.
    pub fn partition_key_index(&self) -> u16 {
        self.partition_key_index
    }
}

/// The names of all devices.
///
/// # Errors
/// The system's: the kernel has no support for devices.
pub fn names() -> io::Result<Vec<String>> {
    let devices = Devices::list()?;
    Ok(devices.iter().map(|(name, _)| name).collect())
}

/// A list of devices of libibverbs.
struct Devices {
    list: *mut *mut ffi::ibv_device,
    len: usize,
}

impl Devices {
    fn list() -> io::Result<Self> {
        let mut len = 0;
        // SAFETY: the call writes the length and returns a list of that length, or null.
        let list = unsafe { ffi::ibv_get_device_list(&raw mut len) };
        if list.is_null() {
            Err(io::Error::last_os_error())
        } else {
            Ok(Devices {
                list,
                len: usize::try_from(len).unwrap_or(0),
            })
        }
    }

    fn iter(&self) -> impl Iterator<Item = (String, *mut ffi::ibv_device)> {
        (0..self.len).map(|n| {
            // SAFETY: the list has `len` devices until it is freed, each with a terminated name.
            unsafe {
                let device = *self.list.add(n);
                let name = CStr::from_ptr(ffi::ibv_get_device_name(device));
                (name.to_string_lossy().into_owned(), device)
            }
        })
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_get_device_list`; open devices stay open.
        unsafe { ffi::ibv_free_device_list(self.list) };
    }
}

fn open(wanted: Option<&str>) -> Result<(Context, String), DeviceError> {
    let none = || DeviceError::None {
        wanted: wanted.map(str::to_owned),
    };
    let devices = Devices::list().map_err(|_| none())?;
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| wanted == name);
    let Some((name, device)) = devices.iter().find(|(name, _)| is_wanted(name)) else {
        let present = List(devices.iter().map(|(name, _)| name).collect());
        return Err(match (wanted, devices.len) {
            (Some(wanted), 1..) => DeviceError::NotFound {
                wanted: wanted.to_owned(),
                present,
            },
            _ => none(),
        });
    };
    // SAFETY: the device is in the list, which is alive; the object is freed by its own call only.
    let context = unsafe { Object::new(ffi::ibv_open_device(device), ffi::ibv_close_device, None) };
    match context {
        Ok(context) => Ok((context, name)),
        Err(error) => Err(DeviceError::System {
            device: name,
            what: "open /dev/infiniband/uverbs*",
            error,
        }),
    }
}

/// An open device whose properties are queried.
struct Opened<'a> {
    context: &'a Context,
    name: &'a str,
    port: u8,
}

impl Opened<'_> {
    fn limits(&self) -> Result<ffi::ibv_device_attr, DeviceError> {
        let mut limits = ffi::ibv_device_attr::default();
        // SAFETY: the context is open; the call fills the limits in.
        let failed = unsafe { ffi::ibv_query_device(self.context.raw(), &raw mut limits) };
        self.done("read the limits", errno(failed))?;
        Ok(limits)
    }

    fn port(&self, ports: u8) -> Result<ffi::ibv_port_attr, DeviceError> {
        if self.port == 0 || self.port > ports {
            return Err(DeviceError::NoPort {
                device: self.name.to_owned(),
                port: self.port,
                ports,
            });
        }
        let mut port = ffi::ibv_port_attr::default();
        // SAFETY: as in `limits`. The call writes an older, shorter form of the same structure.
        let failed = unsafe {
            let port = (&raw mut port).cast();
            ffi::ibv_query_port(self.context.raw(), self.port, port)
        };
        self.done("read the port", errno(failed))?;
        match port.state {
            ffi::ibv_port_state::IBV_PORT_ACTIVE => Ok(port),
            state => Err(DeviceError::PortDown {
                device: self.name.to_owned(),
                port: self.port,
                state,
            }),
        }
    }

    /// The GID at the index, or by default the GID of the best rank.
    fn gid(
        &self,
        port: &ffi::ibv_port_attr,
        index: Option<u8>,
    ) -> Result<(u8, [u8; 16]), DeviceError> {
        let entries = self.gids(port)?;
        let chosen = match index {
            Some(index) => entries.iter().find(|gid| gid.index == u32::from(index)),
            None => entries.iter().min_by_key(|gid| (gid.rank(), gid.index)),
        };
        match (chosen, index) {
            (Some(gid), _) => Ok((u8::try_from(gid.index).unwrap_or(0), gid.bytes)),
            // An InfiniBand subnet needs no GID.
            (None, None) if u32::from(port.link_layer) != ffi::IBV_LINK_LAYER_ETHERNET => {
                Ok((0, [0; 16]))
            }
            (None, index) => Err(DeviceError::NoGid {
                device: self.name.to_owned(),
                port: self.port,
                index: index.unwrap_or(0),
                present: List(entries.iter().map(|gid| gid.index).collect()),
            }),
        }
    }

    fn gids(&self, port: &ffi::ibv_port_attr) -> Result<Vec<Gid>, DeviceError> {
        let room = usize::try_from(port.gid_tbl_len).unwrap_or(0);
        // SAFETY: an entry consists of integers, for which zeros are valid.
        let mut entries: Vec<ffi::ibv_gid_entry> = vec![unsafe { std::mem::zeroed() }; room];
        let size = size_of::<ffi::ibv_gid_entry>();
        // SAFETY: the context is open; the call writes at most `room` entries of this size.
        let count = unsafe {
            ffi::_ibv_query_gid_table(self.context.raw(), entries.as_mut_ptr(), room, 0, size)
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error());
        entries.truncate(self.done("read the GIDs", count)?);
        let of_port = |entry: &&ffi::ibv_gid_entry| entry.port_num == u32::from(self.port);
        let usable = entries.iter().filter(of_port).map(|entry| Gid {
            index: entry.gid_index,
            kind: entry.gid_type,
            // SAFETY: all members of the union are 16 bytes.
            bytes: unsafe { entry.gid.raw },
        });
        Ok(usable.filter(|gid| gid.index <= 255).collect())
    }

    fn check_partition_key(
        &self,
        port: &ffi::ibv_port_attr,
        index: u16,
    ) -> Result<(), DeviceError> {
        if self.partition_key(index).is_some_and(|key| key != 0) && index < port.pkey_tbl_len {
            return Ok(());
        }
        let all = (0..port.pkey_tbl_len).filter_map(|index| {
            let key = self.partition_key(index).filter(|key| *key != 0)?;
            Some(PartitionKey { index, key })
        });
        Err(DeviceError::NoPartitionKey {
            device: self.name.to_owned(),
            port: self.port,
            index,
            present: List(all.collect()),
        })
    }

    fn partition_key(&self, index: u16) -> Option<u16> {
        let mut key = 0;
        // SAFETY: the context is open; the call writes the key.
        let failed = unsafe {
            let index = libc::c_int::from(index);
            ffi::ibv_query_pkey(self.context.raw(), self.port, index, &raw mut key)
        };
        (failed == 0).then(|| u16::from_be(key))
    }

    fn done<T>(&self, what: &'static str, result: io::Result<T>) -> Result<T, DeviceError> {
        result.map_err(|error| DeviceError::System {
            device: self.name.to_owned(),
            what,
            error,
        })
    }
}

/// The limit of segments of a request. iWARP devices take fewer for reads; other drivers may report
/// 0 for reads.
fn most_locals(limits: &ffi::ibv_device_attr) -> usize {
    let at_most = |limit: libc::c_int| usize::try_from(limit).ok().filter(|limit| *limit > 0);
    let limits = [limits.max_sge, limits.max_sge_rd].map(at_most);
    limits.into_iter().flatten().fold(Locals::MOST, usize::min)
}

/// An entry of the GID table.
struct Gid {
    index: u32,
    /// `enum ibv_gid_type`: 2 is RoCE version 2.
    kind: u32,
    bytes: [u8; 16],
}

impl Gid {
    /// Rank by reach: packets of a lower rank can go farther.
    fn rank(&self) -> u8 {
        let is_ipv4 = self.bytes[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        let is_link_local = self.bytes[0] == 0xfe && self.bytes[1] == 0x80;
        match self.kind {
            2 if is_ipv4 => 0,
            2 if !is_link_local => 1,
            2 => 2,
            _ => 3,
        }
    }
}
