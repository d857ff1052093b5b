package testcluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

const tcpTable = "/proc/net/tcp"

// callers finds out from which child of `up` a connection comes: the kernel reports the inode of the other end, and
// the process that has it open is the caller. Processes of the same user need no privilege for this. One scan of the
// children's open files serves all waiting lookups, because many connections arrive at once on a busy machine.
type callers struct {
	parent atomic.Int64 // pid of `up`

	mu      sync.Mutex
	holders map[string]string // child by inode, from the newest scan
	names   map[int]string    // child by pid
}

// usable returns an error with the reason if callers cannot be identified on this machine.
func (k *callers) usable() error {
	if _, err := os.Stat(tcpTable); err != nil {
		return err
	}
	_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d/children", os.Getpid(), os.Getpid()))
	return err
}

// who returns the name of the child that a connection comes from, empty for any other caller.
func (k *callers) who(c *net.TCPConn) string {
	inode, err := inodeOf(c.RemoteAddr(), c.LocalAddr())
	if err != nil {
		return ""
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, known := k.holders[inode]; !known {
		k.look()
	}
	return k.holders[inode]
}

// look finds the sockets that each child of `up` has open.
func (k *callers) look() {
	k.holders = map[string]string{}
	known := k.names
	k.names = map[int]string{}
	for _, pid := range k.children() {
		name, ok := known[pid]
		if !ok || name == "" {
			name = processName(pid)
		}
		k.names[pid] = name
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		open, err := os.ReadDir(dir)
		if err != nil {
			continue // the process has ended
		}
		for _, e := range open {
			to, err := os.Readlink(filepath.Join(dir, e.Name()))
			if inode, ok := strings.CutPrefix(to, "socket:["); err == nil && ok {
				k.holders[strings.TrimSuffix(inode, "]")] = name
			}
		}
	}
}

// diagnoses is set once the kernel has answered a request for a single socket. A kernel without that ability returns
// the same error as for a missing socket.
var diagnoses atomic.Bool

// inodeOf returns the inode of the socket with these two ends. It reads the table of all sockets, which is long after
// many connections have ended, only if the kernel does not answer requests for a single socket.
func inodeOf(own, peer net.Addr) (string, error) {
	var ends [2]netip.AddrPort
	for i, a := range []net.Addr{own, peer} {
		p, err := netip.ParseAddrPort(a.String())
		if err != nil {
			return "", err
		}
		if ends[i] = netip.AddrPortFrom(p.Addr().Unmap(), p.Port()); !ends[i].Addr().Is4() {
			return "", fmt.Errorf("address %s: want IPv4", a)
		}
	}
	inode, err := diagnosed(ends[0], ends[1])
	if err == nil {
		diagnoses.Store(true)
	}
	if err == nil || diagnoses.Load() && errors.Is(err, syscall.ENOENT) {
		return inode, err
	}
	table, err := os.ReadFile(tcpTable)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 9 && f[1] == inTable(ends[0]) && f[2] == inTable(ends[1]) && f[9] != "0" {
			return f[9], nil
		}
	}
	return "", syscall.ENOENT
}

// inTable formats an address as the kernel's table does: the IPv4 address as a word in host byte order, then the
// port.
func inTable(a netip.AddrPort) string {
	ip := a.Addr().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(ip[:]), a.Port())
}

// children returns the pids of the child processes of `up`.
func (k *callers) children() (pids []int) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", k.parent.Load()))
	if err != nil {
		return nil
	}
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for _, text := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(text); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// processName returns the --id of a process.
func processName(pid int) string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	args := strings.Split(string(line), "\x00")
	if i := slices.Index(args, "--id"); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}
