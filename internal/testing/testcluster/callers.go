package testcluster

import (
	"encoding/binary"
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
	"time"
)

const tcpTable = "/proc/net/tcp"

// callers finds out which child of `up` a connection comes from: the kernel's table of sockets gives the inode of the
// other end, and the process that has it open is the caller. No privilege is needed for processes of the same user. One
// look serves all that wait for one: on a busy machine many connections come at once.
type callers struct {
	parent atomic.Int64 // `up`

	mu      sync.Mutex
	looked  time.Time         // when the newest look began
	inodes  map[string]string // by own and peer address of the caller's socket
	holders map[string]string // child by inode
	names   map[int]string    // child by pid
}

// usable returns why callers cannot be found out here.
func (k *callers) usable() error {
	if _, err := os.Stat(tcpTable); err != nil {
		return err
	}
	_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d/children", os.Getpid(), os.Getpid()))
	return err
}

// who returns the name of the child that a connection comes from, empty for anybody else.
func (k *callers) who(c *net.TCPConn) string {
	key, err := tableAddresses(c.RemoteAddr(), c.LocalAddr())
	if err != nil {
		return ""
	}
	asked := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.looked.After(asked) {
		k.look()
	}
	return k.holders[k.inodes[key]]
}

// look reads the table of sockets and what each child of `up` has open.
func (k *callers) look() {
	k.looked = time.Now()
	k.inodes, k.holders = map[string]string{}, map[string]string{}
	if table, err := os.ReadFile(tcpTable); err == nil {
		for line := range strings.Lines(string(table)) {
			if f := strings.Fields(line); len(f) > 9 && f[9] != "0" {
				k.inodes[f[1]+" "+f[2]] = f[9]
			}
		}
	}
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
			continue // it has ended
		}
		for _, e := range open {
			to, err := os.Readlink(filepath.Join(dir, e.Name()))
			if inode, ok := strings.CutPrefix(to, "socket:["); err == nil && ok {
				k.holders[strings.TrimSuffix(inode, "]")] = name
			}
		}
	}
}

// children returns the pids of those that `up` has started.
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

// tableAddresses writes two addresses as the kernel's table does: the IPv4 address as a word of the host, the port.
func tableAddresses(own, peer net.Addr) (string, error) {
	var all [2]string
	for i, a := range []net.Addr{own, peer} {
		p, err := netip.ParseAddrPort(a.String())
		if err != nil {
			return "", err
		}
		if !p.Addr().Unmap().Is4() {
			return "", fmt.Errorf("address %s: want IPv4", a)
		}
		ip := p.Addr().Unmap().As4()
		all[i] = fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(ip[:]), p.Port())
	}
	return all[0] + " " + all[1], nil
}
