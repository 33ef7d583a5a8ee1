//! Small parallel programs with checked results, written once. They only compute, send and receive:
//! through a [`rank`], and [`collectives`] on it.
//!
//! * [`task`]: all programs with their sizes. Kernels of NPB: [`ep`], [`is`], [`cg`], [`ft`],
//!   [`mg`], with terms of [`npb`], and [`lu`] in the shape of NPB's. [`gups`]; [`halo3d`] and
//!   [`sweep3d`], on fields of a [`grid`]; [`messages`].
//! * Live ranks are in [`ranks`](super::ranks). The module `simulate` has ranks on a virtual
//!   clock.

mod cg;
pub mod collectives;
mod ep;
mod ft;
pub mod grid;
mod gups;
pub mod halo3d;
mod is;
mod lu;
pub mod messages;
mod mg;
mod npb;
pub mod rank;
mod sweep3d;
pub mod task;
mod values;
