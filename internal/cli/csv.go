package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// noCSV rejects csv for output of several kinds of items.
func noCSV(as format) error {
	if as == formatCSV {
		return usage("--output csv is for lists and scans: want table, json, jsonl or yaml here")
	}
	return nil
}

// writeCSV writes a line of names, and a line per item: the members of its JSON, in order.
func writeCSV[T any](w io.Writer, items []T) error {
	var names []string
	rows := make([]map[string]json.RawMessage, len(items))
	for i, item := range items {
		row, order, err := members(item)
		if err != nil {
			return err
		}
		rows[i] = row
		for _, name := range order {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	records := [][]string{names}
	for _, row := range rows {
		fields := make([]string, len(names))
		for i, name := range names {
			var err error
			if fields[i], err = csvField(row[name]); err != nil {
				return err
			}
		}
		records = append(records, fields)
	}
	return csv.NewWriter(w).WriteAll(records)
}

// members returns the members of an item, which must be an object in JSON, and their names in order.
func members(item any) (row map[string]json.RawMessage, names []string, err error) {
	text, err := json.Marshal(item)
	if err != nil {
		return nil, nil, err
	}
	if len(text) == 0 || text[0] != '{' {
		return nil, nil, fmt.Errorf("%s is not a list of objects, as csv needs", text)
	}
	if err := json.Unmarshal(text, &row); err != nil {
		return nil, nil, err
	}
	names, err = memberNames(text)
	return row, names, err
}

// memberNames returns the names of an object's members, in order.
func memberNames(object []byte) (names []string, err error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		names = append(names, fmt.Sprint(name))
	}
	return names, nil
}

// csvField returns a value in csv form: a string without quotes, "" for null or a missing value, else JSON.
func csvField(value json.RawMessage) (string, error) {
	switch {
	case len(value) == 0 || string(value) == "null":
		return "", nil
	case value[0] != '"':
		return string(value), nil
	}
	var text string
	err := json.Unmarshal(value, &text)
	return text, err
}
