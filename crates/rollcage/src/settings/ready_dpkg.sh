# Run as root in a sandbox before setup commands: lets dpkg and apt-get add to what the host has in /usr.
set -e
mkdir -p /var/lib/dpkg /etc/apt/apt.conf.d /etc/apt/preferences.d /etc/apt/sources.list.d /etc/dpkg/dpkg.cfg.d \
    /var/lib/apt/lists/partial /var/cache/apt/archives/partial /var/cache/debconf /var/cache/man /var/log/apt
# A copy, since installing changes it.
cp -a /opt/rollcage/dpkg/. /var/lib/dpkg/
chown -R 0:0 /var/lib/dpkg
# Exceptions from owners and modes name accounts that are not inside.
: > /var/lib/dpkg/statoverride
# The accounts that every Debian system has, beside those that are inside already.
for kind in passwd group; do
    if [ -r "/usr/share/base-passwd/$kind.master" ]; then
        awk -F: 'NR == FNR { seen[$1] = 1; next } !($1 in seen)' "/etc/$kind" "/usr/share/base-passwd/$kind.master" > /tmp/accounts
        cat /tmp/accounts >> "/etc/$kind"
        rm /tmp/accounts
    fi
done
touch /etc/shadow /etc/gshadow
chmod 0640 /etc/shadow /etc/gshadow
echo 'APT::Sandbox::User "root";' > /etc/apt/apt.conf.d/00sandbox
# Packages do not start their services: nothing would own them.
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
chmod 0755 /usr/sbin/policy-rc.d
