//! Name lookup in statically linked programs: hosts and users are looked up in files and by DNS only.
//!
//! The GNU C library loads every other service of `/etc/nsswitch.conf` (mDNS, systemd's) from the machine's shared
//! libraries. A static program built with another version crashes in them, and stock systems configure such services.

/// Call it before the first name lookup. A dynamically linked program keeps the machine's configuration.
pub fn use_built_in_services() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    built_in::choose();
}

#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
mod built_in {
    #![expect(unsafe_code, reason = "a function of the C library")]

    use std::ffi::{CStr, c_char, c_int};

    /// Database and services, as in `/etc/nsswitch.conf`; both services are part of the library itself.
    const SERVICES: [(&CStr, &CStr); 4] = [
        (c"hosts", c"files dns"),
        (c"passwd", c"files"),
        (c"group", c"files"),
        (c"services", c"files"),
    ];

    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
    }

    pub(super) fn choose() {
        for (database, services) in SERVICES {
            // SAFETY: both texts live as long as the program and end in a zero byte. It fails for databases that do not
            // exist, and these do.
            let _ = unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
        }
    }
}
