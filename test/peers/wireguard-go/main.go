package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

func main() {
	name := flag.String("name", "wg0", "name of the TUN device")
	mtu := flag.Int("mtu", device.DefaultMTU, "MTU of the TUN device")
	flag.Parse()
	if err := run(*name, *mtu); err != nil {
		fmt.Fprintln(os.Stderr, "wireguard-go:", err)
		os.Exit(1)
	}
}

func run(name string, mtu int) error {
	term := make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM, os.Interrupt)
	config, err := io.ReadAll(os.Stdin)
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	t, err := tun.CreateTUN(name, mtu)
	if err != nil {
		return fmt.Errorf("TUN device %s: %w", name, err)
	}
	d := device.NewDevice(t, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, "wireguard-go: "))
	defer d.Close()
	if err := d.IpcSet(string(config)); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := d.Up(); err != nil {
		return fmt.Errorf("bringing %s up: %w", name, err)
	}
	fmt.Println("ready")
	select {
	case <-term:
	case <-d.Wait():
	}
	return nil
}
