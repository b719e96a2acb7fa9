// CoreDNS with the plugins that the lab's clusters use, and no others: it builds in a third of the time.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// In the order in which a query meets them.
	dnsserver.Directives = []string{"ready", "health", "errors", "cache", "hosts", "kubernetes", "forward"}
	coremain.Run()
}
