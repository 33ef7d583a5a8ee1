//! One-sided operations through a completion queue, on `shm`, on `tcp`, and behind emulated links.

mod on_shm {
    tests::conformance!(@queued crate::shm::Shm);
}

mod on_tcp {
    tests::conformance!(@queued crate::tcp::Tcp);
}

mod behind_a_link {
    use tests::conformance::Emulated;

    tests::conformance!(@queued Emulated<crate::shm::Shm>);

    mod on_tcp {
        use super::Emulated;

        tests::conformance!(@queued Emulated<crate::tcp::Tcp>);
    }
}
