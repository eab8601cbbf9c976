"""Write-ahead journal and watchdog: undo every change to the machine that outlives a process."""
