// Command kubelet is what a Kubernetes node runs beside its containers, in one
// static binary: kubelet, kube-proxy, and CoreDNS for the image of its pods.
//
// It runs the program whose name it was started by (a symlink), or else the
// one that its first argument names. It is a binary apart from
// dev/controlplane because only `make node` needs it.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	_ "github.com/coredns/caddy/onevent"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"

	"github.com/coredns/coredns/coremain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs maps a program's name to its main, which reads os.Args and returns the exit status.
var programs = map[string]func() int{
	"coredns":    func() int { coremain.Run(); return 0 },
	"kubelet":    func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
	"kube-proxy": func() int { return cli.Run(proxy.NewProxyCommand()) },
}

func main() {
	name := filepath.Base(os.Args[0])
	if programs[name] == nil && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = os.Args[1:]
	}
	program := programs[name]
	if program == nil {
		fmt.Fprintln(os.Stderr, "usage: kubelet {coredns|kubelet|kube-proxy} ...")
		os.Exit(2)
	}
	os.Exit(program())
}
