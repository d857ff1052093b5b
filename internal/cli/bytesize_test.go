package cli

import "testing"

func TestByteSize(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "7": 7, "512MiB": 512 << 20, "2 GiB": 2 << 30, "3GB": 3e9,
		"1kB": 1000, "9B": 9, "4KiB": 4096} {
		var b byteSize
		if err := b.Set(text); err != nil || int64(b) != want {
			t.Errorf("%q: %d, %v; want %d", text, b, err, want)
		}
		var again byteSize
		if err := again.Set(b.String()); err != nil || again != b {
			t.Errorf("%q is printed as %q, which is %d", text, b.String(), again)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5GiB", "12 parsecs", "9223372036854775807KiB",
		"99999999999999999999"} {
		if err := new(byteSize).Set(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func TestByteRate(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "-1": -1, "1048576": 1 << 20, "16MiB": 16 << 20, " 2 GiB": 2 << 30} {
		var r, again byteRate
		if err := r.Set(text); err != nil || int64(r) != want {
			t.Errorf("%q: %d, %v; want %d", text, r, err, want)
		}
		if err := again.Set(r.String()); err != nil || again != r {
			t.Errorf("%q is printed as %q, which is %d", text, r.String(), again)
		}
	}
	for _, text := range []string{"", "fast", "-1MiB", "1.5MiB"} {
		if err := new(byteRate).Set(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}
