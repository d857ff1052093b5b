package core

import (
	"errors"
	"fmt"
	"testing"
)

func TestShares(t *testing.T) {
	for _, c := range []struct {
		text string
		has  string // of 0 to 9
		bad  bool
	}{
		{text: "", has: "0123456789"},
		{text: "0-4", has: "01234"},
		{text: "3", has: "3"},
		{text: "0-1,5,8-4095", has: "01589"},
		{text: "4-3", bad: true},
		{text: "4096", bad: true},
		{text: "-3", bad: true},
		{text: "1,,2", bad: true},
		{text: "a", bad: true},
		{text: "0-511 ", bad: true},
	} {
		s, err := ParseShare(c.text)
		got := ""
		for v := range uint16(10) {
			if err == nil && s.Has(v) {
				got += fmt.Sprint(v)
			}
		}
		if errors.Is(err, ErrShare) != c.bad || got != c.has || err == nil && s.String() != c.text {
			t.Errorf("%q: has %s, %v; want %s, bad %v", c.text, got, err, c.has, c.bad)
		}
	}
}
