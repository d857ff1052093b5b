package config

import (
	"errors"
	"fmt"
	"math"

	"github.com/spf13/pflag"
)

// Explain returns an error that states what a flag expects if err is about its value; other errors are returned
// unchanged.
func Explain(err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	return fmt.Errorf("--%s %w", bad.GetFlag().Name, inWords(err))
}

// inWords returns the error of a flag's value without the flag's name: the value, and what is expected.
func inWords(err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	want := ""
	switch bad.GetFlag().Value.Type() {
	case "int", "int64":
		want = fmt.Sprintf("a whole number up to %d", int64(math.MaxInt64))
	case "uint64":
		want = fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64))
	case "bool":
		want = "true or false"
	case "duration":
		want = "a time with its unit, as 300ms, 30s or 1h30m"
	case "stringSlice":
		want = "a list separated by commas; put a value that contains a quotation mark or a comma " +
			"in quotation marks, and double the quotation marks in it"
	default: // from this product, already in the right form
		return fmt.Errorf("%q: %w", bad.GetValue(), errors.Unwrap(bad))
	}
	return fmt.Errorf("%q: want %s", bad.GetValue(), want)
}
