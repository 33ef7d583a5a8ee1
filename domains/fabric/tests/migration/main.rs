//! Regions move to fresh memory while they are used: nothing is lost, nobody reads what never
//! was, and nobody waits for ever.

mod copier;
mod orders;
mod rig;
mod traffic;
