"""
Two GPUs as nvidia-smi shows them, in text and in XML: a new one in order, and an old one of few words.
"""

from __future__ import annotations

NEW_GPU = """\
GPU 00000000:19:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    Serial Number                         : 1650000000001
    GPU UUID                              : GPU-00000000-0000-0000-0000-000000000001
    PCI
        Bus                               : 0x19
        Bus Id                            : 00000000:19:00.0
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
        SW Thermal Slowdown               : Not Active
        Display Clock Setting             : Not Active
    FB Memory Usage
        Total                             : 81559 MiB
        Reserved                          : 551 MiB
    BAR1 Memory Usage
        Total                             : 131072 MiB
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 7
            SRAM Uncorrectable Parity     : 1
            SRAM Uncorrectable SEC-DED    : 2
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 3
        Aggregate
            SRAM Correctable              : 7
            SRAM Uncorrectable Parity     : 1
            SRAM Uncorrectable SEC-DED    : 2
            DRAM Correctable              : 9
            DRAM Uncorrectable            : 40
            SRAM Threshold Exceeded       : No
        Aggregate Uncorrectable SRAM Sources
            SRAM L2                       : 500
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 4
        Uncorrectable Error               : 5
        Pending                           : Yes
        Remapping Failure Occurred        : No
        Bank Remap Availability Histogram
            Max                           : 2560 bank(s)
    Temperature
        GPU Current Temp                  : 62 C
        GPU T.Limit Temp                  : 25 C
    GPU Power Readings
        Power Draw                        : 690.11 W
        Current Power Limit               : 700.00 W
        Max Power Limit                   : 700.00 W
    Module Power Readings
        Current Power Limit               : N/A
    Fabric
        State                             : Completed
        Status                            : Success
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 4711
            Name                          : GPU 00000000:AA:00.0

"""
OLD_GPU = """\
GPU 00000000:3B:00.0
    Product Name                          : Tesla V100-SXM2-32GB
    Persistence Mode                      : Disabled
    Serial Number                         : N/A
    GPU UUID                              : GPU-00000000-0000-0000-0000-000000000002
    Clocks Throttle Reasons               : N/A
    FB Memory Usage
        Total                             : [Unknown Error]
    Ecc Mode
        Current                           : Disabled
    ECC Errors
        Volatile
            Single Bit
                Total                     : 3
            Double Bit
                Device Memory             : 1
                Total                     : 2
        Aggregate
            Double Bit
                Device Memory             : N/A
                Total                     : N/A
    Retired Pages
        Single Bit ECC                    : 6
        Double Bit ECC                    : 1
        Pending Page Blacklist            : No
    Remapped Rows                         : N/A
    Temperature
        GPU Current Temp                  : Unknown Error
    Power Readings
        Power Limit                       : 300.00 W
        Enforced Power Limit              : 250.00 W
    Processes                             : None
"""
TEXT = (
    """\

==============NVSMI LOG==============

Timestamp                                 : Mon Mar  2 10:00:00 2026
Driver Version                            : 550.54.14
CUDA Version                              : 12.4

Attached GPUs                             : 2
"""
    + NEW_GPU
    + OLD_GPU
)

TYPE = '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
XML = (
    '<?xml version="1.0" ?>\n'
    + TYPE
    + """\
<nvidia_smi_log>
  <timestamp>Mon Mar  2 10:00:00 2026</timestamp>
  <driver_version>550.54.14</driver_version>
  <cuda_version>12.4</cuda_version>
  <attached_gpus>2</attached_gpus>
  <gpu id="00000000:19:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <persistence_mode>Enabled</persistence_mode>
    <serial>1650000000001</serial>
    <uuid>GPU-00000000-0000-0000-0000-000000000001</uuid>
    <pci><pci_bus>19</pci_bus><pci_bus_id>00000000:19:00.0</pci_bus_id></pci>
    <clocks_event_reasons>
      <clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle>
      <clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
      <clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown>
      <clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>
      <clocks_event_reason_hw_power_brake_slowdown>Not Active</clocks_event_reason_hw_power_brake_slowdown>
    </clocks_event_reasons>
    <fb_memory_usage><total>81559 MiB</total><reserved>551 MiB</reserved></fb_memory_usage>
    <bar1_memory_usage><total>131072 MiB</total></bar1_memory_usage>
    <ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
    <ecc_errors>
      <volatile>
        <sram_correctable>7</sram_correctable>
        <sram_uncorrectable_parity>1</sram_uncorrectable_parity>
        <sram_uncorrectable_secded>2</sram_uncorrectable_secded>
        <dram_uncorrectable>3</dram_uncorrectable>
      </volatile>
      <aggregate>
        <sram_uncorrectable_parity>1</sram_uncorrectable_parity>
        <sram_uncorrectable_secded>2</sram_uncorrectable_secded>
        <dram_correctable>9</dram_correctable>
        <dram_uncorrectable>40</dram_uncorrectable>
        <sram_threshold_exceeded>No</sram_threshold_exceeded>
      </aggregate>
      <aggregate_uncorrectable_sram_sources><sram_l2>500</sram_l2></aggregate_uncorrectable_sram_sources>
    </ecc_errors>
    <retired_pages>
      <multiple_single_bit_retirement><retired_count>N/A</retired_count></multiple_single_bit_retirement>
      <double_bit_retirement><retired_count>N/A</retired_count></double_bit_retirement>
      <pending_blacklist>N/A</pending_blacklist>
      <pending_retirement>N/A</pending_retirement>
    </retired_pages>
    <remapped_rows>
      <remapped_row_corr>4</remapped_row_corr>
      <remapped_row_unc>5</remapped_row_unc>
      <remapped_row_pending>Yes</remapped_row_pending>
      <remapped_row_failure>No</remapped_row_failure>
    </remapped_rows>
    <temperature><gpu_temp>62 C</gpu_temp><gpu_temp_tlimit>25 C</gpu_temp_tlimit></temperature>
    <gpu_power_readings>
      <current_power_limit>700.00 W</current_power_limit>
      <max_power_limit>700.00 W</max_power_limit>
    </gpu_power_readings>
    <fabric><state>Completed</state></fabric>
    <processes></processes>
  </gpu>
  <gpu id="00000000:3B:00.0">
    <product_name>Tesla V100-SXM2-32GB</product_name>
    <persistence_mode>Disabled</persistence_mode>
    <serial>N/A</serial>
    <uuid>GPU-00000000-0000-0000-0000-000000000002</uuid>
    <clocks_throttle_reasons>N/A</clocks_throttle_reasons>
    <fb_memory_usage><total>[Unknown Error]</total></fb_memory_usage>
    <ecc_mode><current_ecc>Disabled</current_ecc></ecc_mode>
    <ecc_errors>
      <volatile><double_bit><device_memory>1</device_memory><total>2</total></double_bit></volatile>
      <aggregate><double_bit><device_memory>N/A</device_memory><total>N/A</total></double_bit></aggregate>
    </ecc_errors>
    <retired_pages>
      <multiple_single_bit_retirement><retired_count>6</retired_count></multiple_single_bit_retirement>
      <double_bit_retirement><retired_count>1</retired_count></double_bit_retirement>
      <pending_blacklist>No</pending_blacklist>
    </retired_pages>
    <remapped_rows>N/A</remapped_rows>
    <temperature><gpu_temp>Unknown Error</gpu_temp></temperature>
    <power_readings><power_limit>300.00 W</power_limit><enforced_power_limit>250.00 W</enforced_power_limit></power_readings>
    <processes></processes>
  </gpu>
</nvidia_smi_log>
"""
)
