# Looks whether Windlass works on this Windows Node, and writes a report. It changes nothing.
#
#     verify.ps1 [-Python C:\hpc\python\python.exe] [-Report windlass-report.txt]
#
# Exit status: 0 every check passed, 1 one failed. docs/windows.md says what to try by hand besides.
param(
    [string]$Python = 'C:\hpc\python\python.exe',
    [string]$OpenVSwitch = 'C:\openvswitch',
    [string]$Bridge = 'br-int',
    [string]$Gateway = 'windlass-gw0',
    [string]$Report = 'windlass-report.txt'
)
$script:failed = 0
Set-Content -Path $Report -Value "Windlass on $env:COMPUTERNAME, $(Get-Date -Format o)"

function Test-That([string]$What, [scriptblock]$Check) {
    try {
        $said = & $Check 2>&1 | Out-String
        $result = 'ok'
    } catch {
        $said = "$_"
        $result = 'FAILED'
        $script:failed += 1
    }
    Write-Output "$result $What"
    Add-Content -Path $Report -Value "`n== $result $What`n$said"
}

function Invoke-Program([string]$Program, [string[]]$Arguments) {
    & $Program @Arguments
    if ($LASTEXITCODE -ne 0) {
        throw "$Program $Arguments ended with $LASTEXITCODE"
    }
}

$vsctl = Join-Path $OpenVSwitch 'usr\bin\ovs-vsctl.exe'
$ofctl = Join-Path $OpenVSwitch 'usr\bin\ovs-ofctl.exe'
Test-That 'Windows and its version' { Get-ComputerInfo -Property @('OsName', 'OsVersion', 'OsBuildNumber') }
foreach ($name in @('hns', 'ovsdb-server', 'ovs-vswitchd')) {
    Test-That "service $name runs" { if ((Get-Service -Name $name).Status -ne 'Running') { throw 'it does not run' } }
}
Test-That 'the driver ovsext is installed' { Invoke-Program 'netcfg.exe' @('-q', 'ovsext') }
Test-That 'HNS has the network windlass' { if (-not (Get-HnsNetwork | Where-Object Name -eq 'windlass')) { throw 'it has not' } }
Test-That 'the extension of Open vSwitch is enabled' {
    $extension = Get-VMSwitch | Get-VMSwitchExtension | Where-Object Id -eq '583CC151-73EC-4A6A-8B47-578297AD7623'
    if (-not ($extension | Where-Object Enabled)) { throw 'it is not' }
}
Test-That "$Bridge has an address and the default route" {
    Get-NetIPAddress -InterfaceAlias $Bridge -AddressFamily IPv4 -ErrorAction Stop
    Get-NetRoute -InterfaceAlias $Bridge -DestinationPrefix '0.0.0.0/0' -ErrorAction Stop
}
foreach ($name in @($Gateway, $Bridge)) {
    Test-That "$name forwards" {
        $row = Get-NetIPInterface -InterfaceAlias $name -AddressFamily IPv4 -ErrorAction Stop
        if ($row.Forwarding -ne 'Enabled') { throw 'forwarding is off' }
    }
}
Test-That 'software RSC is on' { if (-not (Get-VMSwitch -Name 'windlass').SoftwareRscEnabled) { throw 'it is off: transfers are slower' } }
Test-That 'the checksum offload of all adapters' { Get-NetAdapterChecksumOffload | Format-Table }
Test-That 'the database has the bridge' { Invoke-Program $vsctl @('show') }
Test-That 'the switch has flows' { Invoke-Program $ofctl @('-O', 'OpenFlow15', 'dump-aggregate', $Bridge) }
Test-That 'every port of a Pod is internal and has a number' {
    $wrong = & $vsctl --bare '--columns=name' find Interface 'external_ids:windlass-role=pod' 'ofport=-1'
    if ($wrong) { throw "without a number: $wrong" }
}
Test-That 'the agent is ready' { Invoke-Program $Python @('-m', 'windlass', 'probe', 'ready') }
Test-That 'the status of the agent' { Invoke-Program $Python @('-m', 'windlass', 'status') }
Test-That 'the endpoints of HNS' { Get-HnsEndpoint | Select-Object -Property @('Name', 'IPAddress', 'MacAddress') | Format-Table }
Write-Output "$script:failed failed; the report is $Report"
exit [int]($script:failed -gt 0)
