// Package config gives flags their values from, in this order, the command line, the environment (TIDEMARK_…), a YAML
// file and the default, and remembers where each came from.
//
// It promises that an unknown key in the file and a value that does not fit are errors that name the key and its source.
package config

import (
	"bytes"
	"fmt"
	"os"
	"sort"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// FileFlag names the flag that holds the YAML file's path.
const FileFlag = "config"

// maxFile is the most bytes that a configuration file may have.
const maxFile = 1 << 20

// Origins tells where each flag's value came from: "flag", "env TIDEMARK_X", "file PATH" or "default".
type Origins map[string]string

// Resolve fills flags that the command line has not set. lookup is os.LookupEnv but for tests.
func Resolve(flags *pflag.FlagSet, lookup func(string) (string, bool)) (Origins, error) {
	origins := Origins{}
	flags.VisitAll(func(f *pflag.Flag) {
		origins[f.Name] = "default"
		if f.Changed {
			origins[f.Name] = "flag"
		}
	})
	if err := fromEnv(flags, lookup, origins); err != nil {
		return nil, err
	}
	if f := flags.Lookup(FileFlag); f != nil && f.Value.String() != "" {
		if err := fromFile(flags, f.Value.String(), origins); err != nil {
			return nil, err
		}
	}
	return origins, nil
}

// EnvName gives the environment variable of a flag: log-level → TIDEMARK_LOG_LEVEL.
func EnvName(flag string) string {
	return "TIDEMARK_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func fromEnv(flags *pflag.FlagSet, lookup func(string) (string, bool), origins Origins) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		v, ok := lookup(EnvName(f.Name))
		if !ok || f.Changed || err != nil || f.Name == "help" {
			return
		}
		if e := flags.Set(f.Name, v); e != nil {
			err = fmt.Errorf("environment %s: %w", EnvName(f.Name), e)
			return
		}
		origins[f.Name] = "env " + EnvName(f.Name)
	})
	return err
}

func fromFile(flags *pflag.FlagSet, path string, origins Origins) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("configuration file: %w", err)
	}
	if len(b) > maxFile {
		return fmt.Errorf("configuration file %s: %d bytes, the most is %d", path, len(b), maxFile)
	}
	values := map[string]any{}
	if err := yaml.NewDecoder(bytes.NewReader(b)).Decode(&values); err != nil && len(bytes.TrimSpace(b)) > 0 {
		return fmt.Errorf("configuration file %s: %w", path, err)
	}
	for _, key := range sortedKeys(values) {
		f := flags.Lookup(key)
		if f == nil || key == FileFlag || key == "help" {
			return fmt.Errorf("configuration file %s: unknown key %q; known: %s", path, key, strings.Join(known(flags), ", "))
		}
		if origins[key] != "default" {
			continue
		}
		if err := flags.Set(key, text(values[key])); err != nil {
			return fmt.Errorf("configuration file %s: key %q: %w", path, key, err)
		}
		origins[key] = "file " + path
	}
	return nil
}

// text writes a YAML value the way the command line would.
func text(v any) string {
	list, ok := v.([]any)
	if !ok {
		return fmt.Sprint(v)
	}
	parts := make([]string, len(list))
	for i, e := range list {
		parts[i] = fmt.Sprint(e)
	}
	return strings.Join(parts, ",")
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

func known(flags *pflag.FlagSet) (names []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != FileFlag && f.Name != "help" {
			names = append(names, f.Name)
		}
	})
	return names
}
