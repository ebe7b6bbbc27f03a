//! The system calls that no safe wrapper covers for the options needed here.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Sets a socket option whose value is an `int`.
#[allow(unsafe_code)]
pub(crate) fn set_option(fd: &impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as it is borrowed, and the kernel reads exactly the four bytes of `value`,
    // which lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads a socket option of `N` bytes; fails unless the kernel fills them all.
#[allow(unsafe_code)]
pub(crate) fn get_option<const N: usize>(fd: &impl AsFd, level: i32, name: i32) -> io::Result<[u8; N]> {
    let mut value = [0u8; N];
    let mut length = libc::socklen_t::try_from(N).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open for as long as it is borrowed; the kernel writes at most `length` bytes, which is the
    // size of `value`, and both live until the call returns.
    let result =
        unsafe { libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut length) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if usize::try_from(length) != Ok(N) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel returned a socket option of another size"));
    }
    Ok(value)
}

/// Binds a packet socket to one interface (0: all) and starts the capture of all protocols.
#[allow(unsafe_code)]
pub(crate) fn bind_packet(fd: &impl AsFd, interface: u32) -> io::Result<()> {
    // SAFETY: `sockaddr_ll` is a C structure of integers and an array of them, for which all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET.try_into().map_err(io::Error::other)?;
    address.sll_protocol = u16::try_from(libc::ETH_P_ALL).map_err(io::Error::other)?.to_be();
    address.sll_ifindex = interface.cast_signed();
    // SAFETY: the descriptor is open for as long as it is borrowed; the kernel reads exactly the structure, which lives until
    // the call returns.
    let result = unsafe {
        libc::bind(
            fd.as_fd().as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
