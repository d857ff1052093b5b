package config

import (
	"errors"
	"fmt"
	"math"

	"github.com/spf13/pflag"
)

// Explain says what a flag on the command line wants, where its value does not fit; other errors stay as they are.
func Explain(err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	return fmt.Errorf("--%s %w", bad.GetFlag().Name, inWords(err))
}

// inWords returns the error of a flag's value without the flag's name, as the value and what is wanted.
func inWords(err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	want := ""
	switch bad.GetFlag().Value.Type() {
	case "int", "int64":
		want = fmt.Sprintf("a whole number up to %d", math.MaxInt64)
	case "uint64":
		want = fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64))
	case "bool":
		want = "true or false"
	case "duration":
		want = "a time with its unit, as 300ms, 30s or 1h30m"
	case "stringSlice":
		want = "a list with commas; a value that has a quotation mark or a comma " +
			"stands in quotation marks, and its own are doubled"
	default: // of this product, and worded so
		return fmt.Errorf("%q: %w", bad.GetValue(), errors.Unwrap(bad))
	}
	return fmt.Errorf("%q: want %s", bad.GetValue(), want)
}
