package testcluster

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// Offsets and constants of a request for one socket by its ends (linux/inet_diag.h, inet_diag_req_v2), and of the
// answer's peer port and inode.
const (
	diagByFamily = 20 // SOCK_DIAG_BY_FAMILY
	diagRequest  = unix.SizeofNlMsghdr + 56
	diagPeer     = unix.SizeofNlMsghdr + 6
	diagInode    = unix.SizeofNlMsghdr + 68
)

// diagnosed requests one socket from the kernel. The error wraps unix.ENOENT if there is no such socket.
func diagnosed(own, peer netip.AddrPort) (string, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	b := make([]byte, diagRequest)
	binary.NativeEndian.PutUint32(b, diagRequest)
	binary.NativeEndian.PutUint16(b[4:], diagByFamily)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	r := b[unix.SizeofNlMsghdr:]
	r[0], r[1] = unix.AF_INET, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(r[4:], ^uint32(0)) // any state
	binary.BigEndian.PutUint16(r[8:], own.Port())
	binary.BigEndian.PutUint16(r[10:], peer.Port())
	ownIP, peerIP := own.Addr().As4(), peer.Addr().As4()
	copy(r[12:], ownIP[:])
	copy(r[28:], peerIP[:])
	for i := range 8 { // any cookie
		r[48+i] = 0xff
	}
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return "", err
	}
	answer := make([]byte, 4<<10)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return "", err
	}
	if answer = answer[:n]; n >= unix.SizeofNlMsghdr+4 && binary.NativeEndian.Uint16(answer[4:]) == unix.NLMSG_ERROR {
		return "", unix.Errno(-int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])))
	}
	if n < diagInode+4 {
		return "", fmt.Errorf("an answer of %d bytes", n)
	}
	if binary.BigEndian.Uint16(answer[diagPeer:]) != peer.Port() { // a listening socket: none is connected to the peer
		return "", unix.ENOENT
	}
	return strconv.FormatUint(uint64(binary.NativeEndian.Uint32(answer[diagInode:])), 10), nil
}
