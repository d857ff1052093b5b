package statecontext

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// FormatLevel is the newest command format that this program supports, and that it proposes if the state's level
// allows. SetFormatLevel raises the level of the whole cluster once every voter supports it; the level never falls.
const FormatLevel = 1

// NextLevel is the level after FormatLevel, of a future program. Its only command is Reserved, with which upgrades
// are tested: a program configured to behave as a newer one supports it (fsm.NewUpTo, consensus.Config.FormatLevel).
const NextLevel = FormatLevel + 1

// maxVersionBytes bounds the length of a version's name.
const maxVersionBytes = 64

// ErrFormatLevel is wrapped beside ErrUndecodable or ErrSnapshotVersion if the bytes are intact but of a newer format
// level than the reader supports: a newer version of the program has to be installed.
var ErrFormatLevel = errors.New("newer format level")

// format returns the format level that a kind of command needs. A new kind needs the newest level.
func (k kind) format() uint64 {
	if k == kindReserved {
		return NextLevel
	}
	return 1
}

// waitsForRestore reports whether a command is refused while a restore is in progress, as commands of users are.
// Reports of components and decisions of the coordinator continue; the restore merges with the state that it finds
// when it finishes.
func (c *Command) waitsForRestore() bool {
	switch k := c.Body.kind(); k {
	case kindBeginRestore, kindRestoreChunk, kindFinishRestore, kindAbortRestore:
		return false
	case kindCreateIndex, kindBuildIndexes, kindDropIndex, kindSetFormatLevel, kindSetLimits, kindSetBucketSettings,
		kindStartRebalance, kindSetIndexerGoing, kindAlterIndex, kindSplitIndex, kindCancelSplit, kindByName,
		kindSetAutoSplit:
		return true
	}
	return c.Request.keyed()
}

// RequiredFormat returns the lowest format level at which a command may be proposed.
func RequiredFormat(c *Command) uint64 { return bodyFormat(c.Body) }

// bodyFormat returns the format level that a command needs, including that of a command inside it.
func bodyFormat(b Body) uint64 {
	if c, ok := b.(*ByName); ok {
		return max(c.kind().format(), bodyFormat(c.Body))
	}
	return b.kind().format()
}

// entryFormat returns the format level of an entry with this command. The command that raises the level has the new
// level itself: a program that does not support the level must not skip it.
func entryFormat(b Body) uint64 {
	f := bodyFormat(b)
	switch c := b.(type) {
	case *SetFormatLevel:
		f = max(f, c.Level)
	case *BootstrapCluster:
		f = max(f, c.FormatLevel)
	}
	return min(f, NextLevel) // Apply rejects a higher level
}

// Encode is EncodeAs without the name of a version.
func Encode(commands ...Command) ([]byte, error) { return EncodeAs("", commands...) }

// EncodeAs encodes commands as one Raft entry: a format byte, the lowest level that suffices for all its commands;
// the version of the proposing program; the number of commands, each with its length; and a CRC-32C over everything
// before it. Its errors wrap ErrTooLarge.
func EncodeAs(version string, commands ...Command) ([]byte, error) {
	if len(commands) == 0 || len(commands) > MaxCommands {
		return nil, fmt.Errorf("%w: %d commands, want 1 to %d", ErrTooLarge, len(commands), MaxCommands)
	}
	format := uint64(1)
	for i := range commands {
		format = max(format, entryFormat(commands[i].Body))
	}
	dst := append(make([]byte, 0, 256*len(commands)), byte(format))
	dst = appendString(dst, version[:min(len(version), maxVersionBytes)])
	dst = appendUint(dst, uint64(len(commands)))
	var scratch []byte
	for i := range commands {
		scratch = appendCommand(scratch[:0], &commands[i])
		dst = appendBytes(dst, scratch)
	}
	dst = binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst, castagnoli))
	if len(dst) > MaxEntryBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(dst), MaxEntryBytes)
	}
	return dst, nil
}

// Decode is DecodeUpTo with the newest format level of this program.
func Decode(data []byte) ([]Command, error) { return DecodeUpTo(FormatLevel, data) }

// DecodeUpTo decodes an entry written by EncodeAs as a program does whose newest format level is level. Errors wrap
// ErrUndecodable and say what to do about it; an entry of a newer level also wraps ErrFormatLevel.
func DecodeUpTo(level uint64, data []byte) ([]Command, error) {
	if len(data) < 6 || len(data) > MaxEntryBytes {
		return nil, fmt.Errorf("%w: %d bytes, want 6 to %d: the log is damaged; restore this node from its peers",
			ErrUndecodable, len(data), MaxEntryBytes)
	}
	body, sum := data[:len(data)-4], binary.LittleEndian.Uint32(data[len(data)-4:])
	if got := crc32.Checksum(body, castagnoli); got != sum {
		return nil, fmt.Errorf("%w: checksum %08x, want %08x: the log is damaged; restore this node from its peers",
			ErrUndecodable, got, sum)
	}
	format, d := uint64(body[0]), decoder{b: body[1:]}
	version := d.string()
	if len(version) > maxVersionBytes {
		d.fail("version of %d bytes, at most %d", len(version), maxVersionBytes)
	}
	if format > level {
		return nil, fmt.Errorf("%w: %w: command format %d, this program supports up to %d: install %s", ErrUndecodable,
			ErrFormatLevel, format, level, versionOr(version))
	}
	if format == 0 {
		d.fail("format 0")
	}
	commands, err := d.commands(format, version)
	if err != nil {
		return nil, err
	}
	if err := d.end(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUndecodable, err)
	}
	return commands, nil
}

// commands reads the commands of an entry of the given format. Errors other than the returned one stay in d.
func (d *decoder) commands(format uint64, version string) ([]Command, error) {
	n := d.max(MaxCommands, "commands")
	if d.err == nil && n == 0 {
		d.fail("no commands")
	}
	commands := make([]Command, 0, min(n, uint64(len(d.b))))
	for range n {
		raw := d.bytes()
		if d.err != nil {
			break
		}
		c, err := decodeCommand(raw)
		if err == nil && entryFormat(c.Body) > format {
			err = fmt.Errorf("command type %d needs format %d but is in an entry of format %d", c.Body.kind(),
				entryFormat(c.Body), format)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: command %d of %d: %w: install %s", ErrUndecodable, len(commands)+1, n, err,
				versionOr(version))
		}
		commands = append(commands, c)
	}
	return commands, nil
}

// versionOr returns the text that names the version to install.
func versionOr(version string) string {
	if version == "" {
		return "the version of tidemark that the other managers run"
	}
	return fmt.Sprintf("tidemark %s, which proposed it, or a newer version", version)
}
