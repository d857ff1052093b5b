package testcluster

import (
	"bytes"
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
)

const tcpTable = "/proc/net/tcp"

// callers finds out which child of `up` a connection comes from: the kernel's table of sockets gives the inode of the
// other end, and the process that has it open is the caller. No privilege is needed for processes of the same user.
type callers struct {
	parent atomic.Int64 // `up`

	mu   sync.Mutex
	pids map[int]string // children and their names
}

// usable tells why callers cannot be found out here.
func (k *callers) usable() error {
	if _, err := os.Stat(tcpTable); err != nil {
		return err
	}
	_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d/children", os.Getpid(), os.Getpid()))
	return err
}

// who gives the name of the child that a connection comes from, empty for anybody else.
func (k *callers) who(c *net.TCPConn) string {
	inode, err := socketInode(c.RemoteAddr(), c.LocalAddr())
	if err != nil {
		return "" // it has closed the connection already
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if name := k.owner(inode); name != "" {
		return name
	}
	k.refresh()
	return k.owner(inode)
}

// owner looks through what the known children have open.
func (k *callers) owner(inode string) string {
	want := "socket:[" + inode + "]"
	for pid, name := range k.pids {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		open, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended
		}
		for _, e := range slices.Backward(open) { // new ones come last, mostly
			if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && to == want {
				return name
			}
		}
	}
	return ""
}

// refresh reads the children of `up` and the --id of each.
func (k *callers) refresh() {
	k.pids = map[int]string{}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", k.parent.Load()))
	if err != nil {
		return
	}
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for _, text := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(text)
			if err != nil {
				continue
			}
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err != nil {
				continue
			}
			args := bytes.Split(line, []byte{0})
			for i, a := range args[:len(args)-1] {
				if string(a) == "--id" {
					k.pids[pid] = string(args[i+1])
				}
			}
		}
	}
}

// socketInode finds the socket whose own address and peer are these.
func socketInode(own, peer net.Addr) (string, error) {
	table, err := os.ReadFile(tcpTable)
	if err != nil {
		return "", err
	}
	want, err := tableAddresses(own, peer)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 9 && f[1] == want[0] && f[2] == want[1] && f[9] != "0" {
			return f[9], nil
		}
	}
	return "", fmt.Errorf("no socket %s to %s", own, peer)
}

// tableAddresses writes addresses as the kernel's table does: the IPv4 address as a word of the host, the port.
func tableAddresses(addrs ...net.Addr) ([]string, error) {
	all := make([]string, len(addrs))
	for i, a := range addrs {
		p, err := netip.ParseAddrPort(a.String())
		if err != nil {
			return nil, err
		}
		if !p.Addr().Unmap().Is4() {
			return nil, fmt.Errorf("address %s: want IPv4", a)
		}
		ip := p.Addr().Unmap().As4()
		all[i] = fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(ip[:]), p.Port())
	}
	return all, nil
}
