"""What every part uses and no part owns: processes, threads, text and pages."""
