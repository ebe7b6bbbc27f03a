package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// files prints every file below the paths, with its size and a checksum, so that two moments can be compared. A path that does
// not exist has none.
func files(paths []string) error {
	for _, path := range paths {
		err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			bytes, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			fmt.Printf("%s %d %x\n", name, len(bytes), sha256.Sum256(bytes))
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
