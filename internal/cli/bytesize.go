package cli

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// byteSize is a flag's number of bytes, with or without a unit.
type byteSize int64

var byteUnits = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1}, {"", 1}}

// Set implements pflag.Value.
func (b *byteSize) Set(text string) error {
	for _, u := range byteUnits {
		number, ok := strings.CutSuffix(strings.TrimSpace(text), u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/u.bytes {
			break
		}
		*b = byteSize(n * u.bytes)
		return nil
	}
	return errors.New("want a whole number of bytes, or one with a unit (kB, MB, GB, KiB, MiB, GiB), such as 512MiB")
}

// String implements pflag.Value.
func (b *byteSize) String() string {
	for _, u := range byteUnits[:3] {
		if n := int64(*b); n > 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

// Type implements pflag.Value.
func (*byteSize) Type() string { return "size" }

// byteRate is a flag's number of bytes per second: like byteSize, but any integer is allowed, as a negative one means
// no limit.
type byteRate int64

// Set implements pflag.Value.
func (r *byteRate) Set(text string) error {
	if n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil {
		*r = byteRate(n)
		return nil
	}
	return (*byteSize)(r).Set(text)
}

// String implements pflag.Value.
func (r *byteRate) String() string { return (*byteSize)(r).String() }

// Type implements pflag.Value.
func (*byteRate) Type() string { return "size" }
