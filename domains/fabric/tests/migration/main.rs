//! Migrations of regions in use: no write is lost, no read returns bytes that never were there, and
//! no access waits for ever.

mod copier;
mod orders;
mod rig;
mod traffic;
