//! How the plugin is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // NCCL unloads the plugin with its last communicator, while a thread of its own may still be in a callback.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Rust's own linker keeps all of std for an unwinder that nothing calls; GNU's leaves both out, and with them
    // every symbol that is newer than glibc 2.17.
    println!("cargo::rustc-cdylib-link-arg=-fuse-ld=bfd");
}
