"""What is known against the versions in constraints.txt, and why each is accepted; see SECURITY.md."""
