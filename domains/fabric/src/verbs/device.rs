//! Which device is used, and how: device, port, address and partition key.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::sync::Arc;

use ibverbs_sys as ffi;

use super::objects::{Context, Locals, Object, errno};

/// Reads and atomics that a queue pair asks for, or answers, at a time, if the device can.
const LOADS: u8 = 16;

/// What is wanted. What is not said is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The device's name; the first that there is.
    pub device: Option<String>,
    /// The port's number, from 1.
    pub port: u8,
    /// Which of the port's global identifiers; the first that routes over IP (RoCE version 2,
    /// IPv4 before IPv6), or else the first.
    pub gid_index: Option<u8>,
    /// Which of the port's partition keys. The fabric lets ports talk that have one in common.
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

/// Why a device cannot be used as wanted: what was looked for, and what there is.
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
    /// There are others.
    #[error("no RDMA device named {wanted}: there is {present}")]
    NotFound {
        /// The device looked for.
        wanted: String,
        /// Those that there are.
        present: List<String>,
    },
    /// The device has no such port.
    #[error("{device} has no port {port}: it has ports 1 to {ports}")]
    NoPort {
        /// The device.
        device: String,
        /// The port looked for.
        port: u8,
        /// How many there are.
        ports: u8,
    },
    /// The port cannot be used at present.
    #[error("port {port} of {device} is not active (its state is {state}): is the link up?")]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// `enum ibv_port_state`.
        state: u32,
    },
    /// The port has no such global identifier.
    #[error("port {port} of {device} has no GID at index {index}: it has some at {present}")]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The index looked for.
        index: u8,
        /// Those that there are.
        present: List<u32>,
    },
    /// The port has no such partition key.
    #[error("port {port} of {device} has no partition key at index {index}: it has {present}")]
    NoPartitionKey {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The index looked for.
        index: u16,
        /// The keys that there are, by index.
        present: List<PartitionKey>,
    },
    /// The system's error.
    #[error("cannot {what} of {device}: {error}")]
    System {
        /// The device.
        device: String,
        /// What failed.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
}

/// Things that there are, for people.
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
    /// Where it is.
    pub index: u16,
    /// The key; the highest bit says that the port is a full member.
    pub key: u16,
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x} at {}", self.key, self.index)
    }
}

/// A device that is open, with one of its ports.
#[derive(Debug)]
pub struct Device {
    context: Arc<Context>,
    name: String,
    port: u8,
    gid_index: u8,
    gid: [u8; 16],
    partition_key_index: u16,
    lid: u16,
    mtu: u8,
    longest_message: u64,
    asks: u8,
    answers: u8,
    most_requests: usize,
    most_locals: usize,
    most_buffers: usize,
}

impl Device {
    /// Opens what is wanted.
    ///
    /// # Errors
    /// [`DeviceError`], which says what there is instead.
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
            asks: loads(limits.max_qp_init_rd_atom),
            answers: loads(limits.max_qp_rd_atom),
            most_requests: usize::try_from(limits.max_qp_wr).unwrap_or(0),
            most_locals: most_locals(&limits),
            most_buffers: usize::try_from(limits.max_srq_wr).unwrap_or(0),
            context: Arc::new(context),
            name,
        }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port's number.
    pub fn port(&self) -> u8 {
        self.port
    }

    /// The global identifier's index.
    pub fn gid_index(&self) -> u8 {
        self.gid_index
    }

    /// The port's global identifier; zeros where there are none.
    pub fn gid(&self) -> [u8; 16] {
        self.gid
    }

    /// The partition key's index.
    pub fn partition_key_index(&self) -> u16 {
        self.partition_key_index
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn lid(&self) -> u16 {
        self.lid
    }

    pub(super) fn mtu(&self) -> u8 {
        self.mtu
    }

    /// Bytes of the longest transfer by one request.
    pub(super) fn longest_message(&self) -> u64 {
        self.longest_message
    }

    /// Reads and atomics that a queue pair may ask for at a time.
    pub(super) fn asks(&self) -> u8 {
        self.asks
    }

    /// Reads and atomics that a queue pair answers at a time.
    pub(super) fn answers(&self) -> u8 {
        self.answers
    }

    /// Requests that a queue pair can have.
    pub(super) fn most_requests(&self) -> usize {
        self.most_requests
    }

    /// Places in our memory that one of them may have; at least one.
    pub(super) fn most_locals(&self) -> usize {
        self.most_locals
    }

    /// Buffers for packets that the channels of a domain can share.
    pub(super) fn most_buffers(&self) -> usize {
        self.most_buffers
    }
}

/// The names of all devices.
///
/// # Errors
/// The system's: none, where the kernel has no support.
pub fn names() -> io::Result<Vec<String>> {
    let devices = Devices::list()?;
    Ok(devices.iter().map(|(name, _)| name).collect())
}

/// The list of devices, as libibverbs made it.
struct Devices {
    list: *mut *mut ffi::ibv_device,
    len: usize,
}

impl Devices {
    fn list() -> io::Result<Self> {
        let mut len = 0;
        // SAFETY: the call writes the length and returns a list of so many, or null.
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
            // SAFETY: the list has `len` devices until it is freed, each with a name that ends.
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
        // SAFETY: made by `ibv_get_device_list`; devices that are open stay so.
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
    // SAFETY: the device is of the list, which is alive; the object is freed by its own call only.
    let context = unsafe { Object::new(ffi::ibv_open_device(device), ffi::ibv_close_device) };
    match context {
        Ok(context) => Ok((context, name)),
        Err(error) => Err(DeviceError::System {
            device: name,
            what: "open /dev/infiniband/uverbs*",
            error,
        }),
    }
}

/// A device that was opened, and is asked what it has.
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

    /// The global identifier at the index, or the one that reaches farthest.
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
            // A subnet of InfiniBand needs none.
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
        // SAFETY: an entry is numbers, for which zeros are values.
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

/// iWARP devices take fewer for reads; drivers for which it is the same may say nothing of them.
fn most_locals(limits: &ffi::ibv_device_attr) -> usize {
    let at_most = |limit: libc::c_int| usize::try_from(limit).ok().filter(|limit| *limit > 0);
    let limits = [limits.max_sge, limits.max_sge_rd].map(at_most);
    limits.into_iter().flatten().fold(Locals::MOST, usize::min)
}

/// An entry of the table of global identifiers.
struct Gid {
    index: u32,
    /// `enum ibv_gid_type`: 2 is RoCE version 2.
    kind: u32,
    bytes: [u8; 16],
}

impl Gid {
    /// The lower, the farther packets can go.
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
