package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// kill ends every process whose command line begins with the words, and prints the number of each. In a pod that shares its
// node's process namespace these are the node's.
func kill(words []string) error {
	if len(words) == 0 {
		return fmt.Errorf("kill wants the first words of a command line")
	}
	wanted := strings.Join(words, "\x00") + "\x00"
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	killed := 0
	for _, path := range found {
		line, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(line), wanted) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("process %d: %w", pid, err)
		}
		fmt.Println(pid)
		killed++
	}
	if killed == 0 {
		return fmt.Errorf("no process is called by %q", strings.Join(words, " "))
	}
	return nil
}
