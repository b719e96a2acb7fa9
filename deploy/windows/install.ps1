# Prepares a Windows Node for Windlass: Open vSwitch as two services. Running it again changes only what is missing.
# The agent itself comes as a HostProcess DaemonSet of the chart (windows.enabled).
#
#     install.ps1 [-OpenVSwitch C:\openvswitch]
#
# In that folder: usr\bin and usr\sbin with the programs, usr\share\openvswitch\vswitch.ovsschema, and the driver in driver\
# (ovsext.inf, ovsext.cat, ovsext.sys), signed by a certificate that this machine trusts.
param([string]$OpenVSwitch = 'C:\openvswitch')
$ErrorActionPreference = 'Stop'

$schema = Join-Path $OpenVSwitch 'usr\share\openvswitch\vswitch.ovsschema'
$etc = Join-Path $OpenVSwitch 'etc\openvswitch'
$run = Join-Path $OpenVSwitch 'var\run\openvswitch'
$log = Join-Path $OpenVSwitch 'var\log\openvswitch'
$database = Join-Path $etc 'conf.db'
$server = Join-Path $OpenVSwitch 'usr\sbin\ovsdb-server.exe'
$switchd = Join-Path $OpenVSwitch 'usr\sbin\ovs-vswitchd.exe'
$tool = Join-Path $OpenVSwitch 'usr\bin\ovsdb-tool.exe'

function Require-Success([string]$What) {
    if ($LASTEXITCODE -ne 0) {
        throw "$What failed with exit status $LASTEXITCODE"
    }
}

foreach ($file in @($server, $switchd, $tool, $schema)) {
    if (-not (Test-Path $file)) {
        throw "$file is missing: unpack Open vSwitch for Windows to $OpenVSwitch first"
    }
}
if (-not (Get-WindowsFeature -Name 'Containers').Installed) {
    throw 'The feature Containers is missing: Install-WindowsFeature Containers, and restart'
}
New-Item -ItemType Directory -Force -Path $etc, $run, $log | Out-Null

# The driver. Windows refuses one that is not signed.
netcfg.exe -q ovsext | Out-Null
if ($LASTEXITCODE -ne 0) {
    netcfg.exe -l (Join-Path $OpenVSwitch 'driver\ovsext.inf') -c s -i OVSExt
    Require-Success 'The installation of the driver ovsext'
}

if (-not (Test-Path $database)) {
    & $tool create $database $schema
    Require-Success 'The creation of the database'
} elseif ((& $tool needs-conversion $database $schema) -eq 'yes') {
    # An upgrade with a newer schema. The datapath is without a switch until both services run again.
    Stop-Service -Name @('ovs-vswitchd', 'ovsdb-server') -ErrorAction SilentlyContinue
    & $tool convert $database $schema
    Require-Success 'The conversion of the database'
}

# The services. ovs-vswitchd needs the database; Windows starts both again when they fail, after 1, 5 and 30 seconds.
$remote = (Join-Path $run 'db.sock').Replace('\', '/')
$logs = $log.Replace('\', '/')
if (-not (Get-Service -Name 'ovsdb-server' -ErrorAction SilentlyContinue)) {
    $command = "`"$server`" `"$database`" -vfile:info --log-file=`"$logs/ovsdb-server.log`" --remote=punix:$remote --service --service-monitor"
    New-Service -Name 'ovsdb-server' -BinaryPathName $command -StartupType Automatic | Out-Null
}
if (-not (Get-Service -Name 'ovs-vswitchd' -ErrorAction SilentlyContinue)) {
    $command = "`"$switchd`" unix:$remote -vfile:info --log-file=`"$logs/ovs-vswitchd.log`" --service --service-monitor"
    New-Service -Name 'ovs-vswitchd' -BinaryPathName $command -StartupType Automatic -DependsOn 'ovsdb-server' | Out-Null
}
foreach ($name in @('ovsdb-server', 'ovs-vswitchd')) {
    sc.exe failure $name reset= 86400 actions= restart/1000/restart/5000/restart/30000 | Out-Null
    Require-Success "The recovery of service $name"
    Start-Service -Name $name
}
Write-Output 'Open vSwitch runs. Label the Node kubernetes.io/os=windows, and install the chart with windows.enabled=true.'
