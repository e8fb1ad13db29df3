//! Linker arguments of the plugin.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Keeps the plugin mapped (`nodelete`), because NCCL unloads it with its last communicator while one of NCCL's
    // threads may still be in a callback.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Links with GNU ld. Rust's own linker keeps all of std for an unwinder that is never called. GNU ld drops both,
    // and with them every symbol newer than glibc 2.17.
    println!("cargo::rustc-cdylib-link-arg=-fuse-ld=bfd");
}
